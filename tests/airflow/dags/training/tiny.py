"""A training of a second: prints steps, saves and loads checkpoints, and can fail in the ways that are told.

Every process of it appends what it lives through to STORY/<chain>.jsonl, and holds a lock of its chain and rank: two
attempts of one chain that are alive at once are told by the kernel, however short it was.
"""

import argparse
import base64
import fcntl
import json
import os
import signal
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--every", type=int, default=2, help="steps between checkpoints")
parser.add_argument("--interval", type=float, default=0.2, help="seconds a step takes")
parser.add_argument("--crash-at", type=int, help="the step at which rank 0 fails")
parser.add_argument("--times", type=int, default=1, help="how often it fails in all")
parser.add_argument("--apart", type=int, default=0, help="each further failure is so many steps later")
parser.add_argument("--code", type=int, default=7)
parser.add_argument("--say", default="", help="a line printed before the failure")
parser.add_argument("--say64", default="", help="bytes printed before the failure, in base64")
parser.add_argument("--say-variable", default="", help="an environment variable whose value is printed")
parser.add_argument("--hang-at", type=int)
parser.add_argument("--ignore-term", action="store_true")
parser.add_argument(
    "--endless", action="store_true", help="the first attempt goes on until STORY/<chain>.enough is there"
)
args = parser.parse_args()

CHAIN, RANK = os.environ["FT_CHAIN_ID"], int(os.environ["FT_NODE_RANK"])
ENDLESS = args.endless and os.environ["FT_ATTEMPT"] == "0"
NODES, GENERATION = int(os.environ["FT_NNODES"]), int(os.environ["FT_GENERATION"])
FOLDER = os.environ["TRAINING_STORY"]


def tell(what, **more):
    story = {"what": what, "job": os.environ["FT_JOB"], "attempt": int(os.environ["FT_ATTEMPT"]), "rank": RANK}
    story.update(generation=GENERATION, node=os.environ["FT_NODE"], pid=os.getpid(), time=time.time(), **more)
    file = os.open(path(".jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, (json.dumps(story) + "\n").encode())
    os.close(file)


def path(suffix):
    return os.path.join(FOLDER, CHAIN + suffix)


def end(code, step):
    tell("end", code=code, step=step)
    sys.stdout.flush()
    os._exit(code)


def term(number, frame):
    tell("term")
    if not args.ignore_term:
        end(143, None)


def faults(file):
    try:
        return os.path.getsize(file)
    except OSError:
        return 0


def fails():
    """Whether this failure is still due. Counted in a file, so that it is the same over all attempts."""
    file = path(".faults")
    if faults(file) >= args.times:
        return False
    with open(file, "a") as count:
        count.write("x")
    return True


def crash_step():
    return args.crash_at and args.crash_at + args.apart * faults(path(".faults"))


def fail(step):
    sys.stdout.flush()
    if args.say:
        print(args.say, file=sys.stderr, flush=True)
    if args.say_variable:
        print(f"ERROR: refused: HF_TOKEN={os.environ[args.say_variable]}", file=sys.stderr, flush=True)
    if args.say64:
        os.write(2, base64.b64decode(args.say64) + b"\n")
    end(args.code, step)


def together(step):
    """Like a collective: nobody goes on before all have come so far. Returns whether rank 0 says that it is enough."""
    enough = os.path.exists(path(".enough"))
    if NODES == 1:
        return enough
    run = os.path.join(FOLDER, f"{os.environ['FT_JOB']}.{GENERATION}")
    with open(f"{run}.{RANK}.{step}.new", "w") as mine:
        mine.write("enough" if enough else "")
    os.replace(f"{run}.{RANK}.{step}.new", f"{run}.{RANK}.{step}")
    while not all(os.path.exists(f"{run}.{rank}.{step}") for rank in range(NODES)):
        time.sleep(0.02)
    with open(f"{run}.0.{step}") as first:
        return first.read() == "enough"


signal.signal(signal.SIGTERM, term)
lock = os.open(path(f".lock{RANK}"), os.O_RDWR | os.O_CREAT, 0o600)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    tell("double")
tell("start", resume_from=os.environ.get("FT_RESUME_FROM", ""))

step, checkpoint = 0, path(".ckpt")
try:
    with open(checkpoint) as saved:
        step = int(saved.read())
    print(f"resumed from checkpoint step {step} ({checkpoint})", flush=True)
except (OSError, ValueError):
    print("no checkpoint, starting from scratch", flush=True)
enough = False
while step < args.steps or (ENDLESS and not enough):
    time.sleep(args.interval)
    step += 1
    if args.hang_at == step and RANK == 0 and fails():
        tell("hang")
        while True:
            time.sleep(0.2)
    print(f"step {step}/{10**6 if ENDLESS else args.steps} loss {1.0 / step:.4f}", flush=True)
    if crash_step() == step and RANK == 0 and fails():
        fail(step)
    if step % args.every == 0 and RANK == 0:
        with open(checkpoint + ".new", "w") as saved:
            saved.write(str(step))
        os.replace(checkpoint + ".new", checkpoint)
        print(f"saved checkpoint step {step} ({checkpoint})", flush=True)
    enough = together(step)
together("end")
end(0, step)
