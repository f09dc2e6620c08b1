#!/bin/bash
#SBATCH --job-name=tunegym-0123456789ab-3
#SBATCH --nodes=1
#SBATCH --no-requeue

# setup: apptainer exec --nv image.sif /bin/sh -e -c make
# apptainer exec --nv image.sif /bin/sh -e -c 'echo '"'"'it'"'"''"'"'s'"'"' $X'
# teardown: apptainer exec --nv image.sif /bin/sh -e -c 'rm -r x'
exec PYTHON -P -m tunegym.tuning.runners.node trials/000003.job
