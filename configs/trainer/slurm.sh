#!/bin/bash
# A run on the devices of a SLURM allocation, requeued after preemption and before the time limit: a training continues, a
# measurement starts again. In any folder:
#   sbatch "$(probing --configs)/trainer/slurm.sh" fit clark2019/attention_only
# One task for each device. Adapt partition, nodes, devices, cores and time. Two GPUs of a node: --gpus-per-node=2.
#SBATCH --job-name=probe
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@90
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

trap 'scontrol requeue "$SLURM_JOB_ID"' USR1 # before the time limit
srun --kill-on-bad-exit=1 probing "$1" trainer/slurm "${@:2}" \
    --trainer.num_nodes "$SLURM_NNODES" --trainer.devices "$SLURM_NTASKS_PER_NODE" &
wait $!
code=$?
((code == 0)) && exit
# Where the partition has a GraceTime, a preemption ends the tasks, and SLURM requeues only a job that runs until its end.
job=$(scontrol --oneliner show job "$SLURM_JOB_ID")
if [[ $job == *JobState=RUNNING* && $job =~ PreemptTime=[0-9] ]]; then # not cancelled, nor requeued above
    scontrol requeue "$SLURM_JOB_ID"
elif [[ $job == *JobState=RUNNING* ]] && ((code > 128)); then
    echo "The run was ended by a signal; srun says above which task. Submit the same command again: it goes on from what is kept."
fi
exit $code
