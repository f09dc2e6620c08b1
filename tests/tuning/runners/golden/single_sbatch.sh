#!/bin/bash
#SBATCH --job-name=tunegym-0123456789ab-allocation
#SBATCH --nodes=3
#SBATCH --time=2:00:00
#SBATCH --no-requeue
#SBATCH --ntasks-per-node=1

exec sleep infinity

# job.sh of this trial, by srun --jobid=ALLOCATION --nodes=1 --ntasks=1 --ntasks-per-node=1 --exact --cpus-per-task=CPUS --wait=1 --input=none --output=job.out bash job.sh:
#!/bin/bash

# python train.py --lr 0.1 | tee 'my log'
export A=1
exec PYTHON -P -m tunegym.tuning.runners.node trials/000017.job
