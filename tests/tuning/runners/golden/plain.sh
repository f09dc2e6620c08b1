#!/bin/bash
#SBATCH --job-name=tunegym-0123456789ab-17
#SBATCH --nodes=1
#SBATCH --no-requeue

# python train.py --lr 0.1 | tee 'my log'
exec PYTHON -P -m tunegym.tuning.runners.node trials/000017.job
