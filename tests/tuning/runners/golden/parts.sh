#!/bin/bash
#SBATCH --job-name=tunegym-0123456789ab-3
#SBATCH --nodes=1
#SBATCH --no-requeue

# setup: ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss
# a
# \tb
# #SBATCH --x
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
# c
#
# teardown: t
exec PYTHON -P -m tunegym.tuning.runners.node trials/3.job
