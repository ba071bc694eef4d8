"""Claims: one owner at a time, and none that outlives its process."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from vibayes.experiments import claims

HOLD = """
import sys, time
from pathlib import Path
from vibayes.experiments import claims
claim = claims.take(Path(sys.argv[1]), Path(sys.argv[2]))
print("held" if claim else "refused", flush=True)
sys.stdin.readline()
"""


def test_one_owner(tmp_path: Path) -> None:
    lock, guard = tmp_path / "a.lock", tmp_path / "guard"
    claim = claims.take(lock, guard)
    assert claim is not None
    assert claim.held
    assert claims.take(lock, guard) is None
    assert not claims.free(lock)
    claim.release()
    assert claims.free(lock)
    with claims.take(lock, guard) as other:  # type: ignore[union-attr]
        assert other.held
    assert not lock.exists()


def test_a_killed_owner_loses_its_claim_at_once(tmp_path: Path) -> None:
    lock, guard = tmp_path / "a.lock", tmp_path / "guard"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock), str(guard)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert claims.take(lock, guard) is None
    process.kill()
    while claims.take(lock, guard) is None:  # also while nobody has waited for it
        assert process.poll() is None or True
    process.communicate()
    assert json.loads(lock.read_text())["pid"] == os.getpid()


def test_another_machines_claim_is_stale_after_silence(tmp_path: Path) -> None:
    lock, guard = tmp_path / "a.lock", tmp_path / "guard"
    lock.write_text(json.dumps({"host": "elsewhere", "boot": "1", "container": "2", "pid": 1, "token": "x"}))
    assert claims.take(lock, guard) is None
    old = time.time() - claims.STALE_SECONDS - 1
    os.utime(lock, (old, old))
    claim = claims.take(lock, guard)
    assert claim is not None
    claim.release()


def test_a_lost_claim_knows_it_and_leaves_the_new_owner_alone(tmp_path: Path) -> None:
    lock, guard = tmp_path / "a.lock", tmp_path / "guard"
    claim = claims.take(lock, guard)
    assert claim is not None
    lock.unlink()
    other = claims.take(lock, guard)
    assert other is not None
    assert not claim.held
    claim.release()
    assert other.held
    other.release()


def test_a_process_number_used_again_is_not_the_owner(tmp_path: Path) -> None:
    lock, guard = tmp_path / "a.lock", tmp_path / "guard"
    claim = claims.take(lock, guard)
    assert claim is not None
    content = json.loads(lock.read_text())
    lock.write_text(json.dumps({**content, "started": "1"}))
    assert claims.free(lock)
    claim.release()
