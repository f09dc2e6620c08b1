#!/bin/bash
#SBATCH --job-name=tunegym-0123456789ab-5
#SBATCH --nodes=1
#SBATCH --no-requeue

# model:train(lr=0.1, name="it's")
exec PYTHON -P -m tunegym.tuning.runners.node trials/000005.job
