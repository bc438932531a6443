#!/bin/sh
# A training of shell: steps, checkpoints, and one way to fail. Cheap, so that many run at once beside a browser.
#   steps.sh STEPS INTERVAL [crash|hang|oom|dns|bug|markup AT [TIMES]]: at step AT, the next time 10 steps later
# SAVED is its checkpoint, FAULTS counts how often it has failed; both are of the chain, over all its attempts.
steps=$1 interval=$2 how=${3:-} at=${4:-0} times=${5:-1}
saved="$STORY/$FT_CHAIN_ID.ckpt" faults="$STORY/$FT_CHAIN_ID.faults"
trap 'exit 143' TERM

step=0
if [ -f "$saved" ]; then
    read -r step < "$saved"
    echo "resumed from checkpoint step $step (${saved##*/})"
else
    echo "no checkpoint, starting from scratch"
fi
failed=0
[ -f "$faults" ] && failed=$(wc -l < "$faults")
while [ "$step" -lt "$steps" ]; do
    sleep "$interval"
    step=$((step + 1))
    if [ -n "$how" ] && [ "$step" -eq $((at + 10 * failed)) ] && [ "$failed" -lt "$times" ] && [ "$FT_NODE_RANK" -eq 0 ]; then
        echo x >> "$faults"
        case $how in
            hang) while :; do sleep 1; done ;;
            oom) echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free." >&2 ;;
            dns) echo "socket.gaierror: [Errno -3] Temporary failure in name resolution" >&2 ;;
            bug) echo "ValueError: shape mismatch: <script>document.title='owned'</script>" >&2 ;;
            markup)
                head -c 1000000 /dev/zero | tr '\0' 'A' >&2
                printf '\n\033[31mRuntimeError: <img src=x onerror="document.title=1">\033[0m HF_TOKEN=%s\n' "$HF_TOKEN" >&2 ;;
        esac
        exit 7
    fi
    if [ "$FT_NNODES" -eq 2 ]; then # like a collective: nobody goes on alone, so a lost node stops the other one
        mine="$STORY/$FT_JOB.$FT_GENERATION.$FT_NODE_RANK" other="$STORY/$FT_JOB.$FT_GENERATION.$((1 - FT_NODE_RANK))"
        echo "$step" > "$mine.new" && mv "$mine.new" "$mine"
        until [ -f "$other" ] && [ "$(cat "$other")" -ge "$step" ]; do sleep 0.1; done
    fi
    echo "step $step/$steps loss 1.$((1000 - step % 900))"
    if [ $((step % 5)) -eq 0 ] && [ "$FT_NODE_RANK" -eq 0 ]; then
        echo "$step" > "$saved.new" && mv "$saved.new" "$saved"
        echo "saved checkpoint step $step (${saved##*/})"
    fi
done
