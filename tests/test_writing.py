"""Files are replaced completely or not at all."""

import os
import stat
import time
from pathlib import Path

import pytest

from vibayes.writing import remove_left, written_whole


def test_a_file_is_replaced_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "file"
    for text in ("old", "new"):
        before = path.read_text() if path.exists() else None
        with written_whole(path) as aside:
            aside.write_text(text)
            assert (path.read_text() if path.exists() else None) == before
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_after_an_error_the_old_file_is_there_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with written_whole(path) as aside:
            aside.write_text("half of")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    link = tmp_path / "link"
    link.symlink_to("old")
    with written_whole(link) as aside:
        aside.write_text("new")
    assert link.is_symlink()
    assert (tmp_path / "old").read_text() == "new"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    with written_whole(pipe) as aside:
        aside.write_text("new")
    assert os.read(end, 10) == b"new"
    os.close(end)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_a_killed_writer_left_is_removed_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    path, left, other = tmp_path / "file[1]", tmp_path / ".file[1].0f.part", tmp_path / ".file1.0f.part"
    for file in (left, other):
        file.write_text("half of")
        os.utime(file, (0.0, time.time() - 7200.0))
    with written_whole(path) as aside:
        assert aside.match(".file?1?.*.part")  # as what was left is named
        aside.write_text("new")
        remove_left(path)
        assert not left.exists()
    assert path.read_text() == "new"
    assert other.exists()
