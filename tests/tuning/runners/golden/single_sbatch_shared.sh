#!/bin/bash
#SBATCH --job-name=tunegym-0123456789ab-allocation
#SBATCH --nodes=2
#SBATCH --partition=gpu
#SBATCH --gpus-per-node=a100:4
#SBATCH --no-requeue
#SBATCH --ntasks-per-node=2

exec sleep infinity

# job.sh of this trial, by srun --jobid=ALLOCATION --nodes=2 --ntasks=2 --ntasks-per-node=1 --exact --cpus-per-task=CPUS --mem=0 --gpus-per-node=a100:2 --wait=1 --input=none --output=job.out bash job.sh:
#!/bin/bash

# srun ./solve
[ "$SLURM_PROCID" = 0 ] || exec sleep infinity
exec PYTHON -P -m tunegym.tuning.runners.node trials/000003.job
