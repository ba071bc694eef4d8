"""Kill -9 a sweep at ten random moments, resume it, and compare with an undisturbed one, bit for bit.

    python benchmarks/sweep_kill.py [--kills 10] [--group 4] [--seed 0]

Prints what was killed when, and the verdict; the exit code is 0 when all metrics are the same.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "tests" / "experiments" / "tiny.py"


def start(out: Path, group: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "TINY_STEPS": "400"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(out), str(group), "0.1"], stdout=subprocess.PIPE, text=True, env=environment
    )


def metrics_in(out: Path) -> dict[str, str]:
    """The metrics as they stand in every result file; a file that is not whole raises."""
    return {p.name: json.dumps(json.loads(p.read_text())["metrics"]) for p in sorted(out.glob("*/*/*/split-*.json"))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--group", type=int, default=2, help="runs that train together")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder, "whole"), Path(folder, "killed")
        begin = time.monotonic()
        start(whole, given.group).communicate()
        seconds = time.monotonic() - begin
        print(f"undisturbed: {len(metrics_in(whole))} results in {seconds:.1f} s")
        kills = 0
        while kills < given.kills:
            process = start(killed, given.group)
            wait = chance.uniform(0.3, 1.0) * seconds / 2
            try:
                process.wait(wait)
                print(f"finished by itself after {kills} kills; starting over with another moment")
                for path in killed.glob("*/*/*/split-*.json"):
                    path.unlink()
                continue
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
            there = metrics_in(killed)
            kept = [p.name for p in killed.glob(".work/*/group-*/checkpoint*")]
            print(f"kill {kills} after {wait:.2f} s: {len(there)} results, checkpoints {sorted(kept)}")
        process = start(killed, given.group)
        said = process.communicate()[0].strip()
        same = metrics_in(killed) == metrics_in(whole)
        left = [str(p) for p in killed.glob(".work/tiny*")]
        print(f"resumed: {said}")
        print(f"metrics {'identical, bit for bit' if same else 'DIFFER'}; left behind: {left or 'nothing'}")
        return 0 if same and not left else 1


if __name__ == "__main__":
    sys.exit(main())
