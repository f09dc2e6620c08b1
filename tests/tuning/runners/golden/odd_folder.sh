#!/bin/bash
#SBATCH --job-name=tunegym-0123456789ab-1
#SBATCH --nodes=1
#SBATCH --no-requeue

# true
exec PYTHON -P -m tunegym.tuning.runners.node 'a b/it'"'"'s $X
\%j.job'
