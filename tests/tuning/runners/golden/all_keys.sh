#!/bin/bash
#SBATCH --job-name=tunegym-0123456789ab-17.2
#SBATCH --nodes=4
#SBATCH --partition=gpu
#SBATCH --account=lab
#SBATCH --qos=high
#SBATCH --time=1:30:00
#SBATCH --gpus-per-node=4
#SBATCH --exclude=n7,n8
#SBATCH --no-requeue
#SBATCH --mem=16G
#SBATCH '--constraint=a100&nvlink'
#SBATCH '--comment=it'"'"'s a test'

# srun ./solve
export OMP_NUM_THREADS=4
export NOTE='it'"'"'s $HOME'
exec PYTHON -P -m tunegym.tuning.runners.node trials/000017/repeat-2.job
