"""Files: what is written comes back, whole or not at all, and foreign files are refused."""

from __future__ import annotations

import json
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from pyro_opu.utils import files


def tensors() -> dict[str, torch.Tensor]:
    base = torch.arange(12.0).reshape(3, 4)
    return {
        "weight": base,
        "turned": base.T,  # not contiguous
        "row": base[0],  # shares memory with "weight"
        "number": torch.tensor(3),
        "empty": torch.zeros(0, 2),
        "bytes": torch.get_rng_state(),
        "half": torch.ones(2, dtype=torch.bfloat16),
    }


def test_round_trip(tmp_path: Path) -> None:
    config = {"shape": [1, 2], "name": "π", "none": None, "rate": 0.1, "inf": float("inf")}
    files.write(tmp_path / "a.safetensors", "test", tensors(), config)
    found, plain = files.read(tmp_path / "a.safetensors", "test")
    assert plain == config
    assert found.keys() == tensors().keys()
    for name, value in tensors().items():
        assert torch.equal(found[name], value) and found[name].dtype == value.dtype


def test_text_paths_and_other_readers(tmp_path: Path) -> None:
    path = str(tmp_path / "a.safetensors")
    files.write(path, "test", {"w": torch.ones(2)}, {})
    assert torch.equal(load_file(path)["w"], torch.ones(2))


def test_parameters_are_written_without_their_graph(tmp_path: Path) -> None:
    files.write(tmp_path / "a", "test", {"w": nn.Parameter(torch.ones(2))}, {})
    assert not files.read(tmp_path / "a", "test")[0]["w"].requires_grad


def test_permissions_are_the_usual_ones(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("")
    files.write(tmp_path / "a", "test", {"w": torch.ones(2)}, {})
    modes = [stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("usual", "a")]
    assert modes[0] == modes[1]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    files.write(path, "test", {"w": torch.ones(2)}, {})

    def broken(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(KeyboardInterrupt):
        files.write(path, "test", {"w": torch.zeros(2)}, {})
    assert torch.equal(files.read(path, "test")[0]["w"], torch.ones(2))
    assert [found.name for found in tmp_path.iterdir()] == ["a"]


def test_missing_folder_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="`path` must lie in an existing folder"):
        files.write(tmp_path / "nowhere" / "a", "test", {}, {})
    with pytest.raises(FileNotFoundError, match="nowhere' does not exist"):
        files.read(tmp_path / "nowhere", "test")


class TestPut:
    def test_a_link_stays_and_permissions_too(self, tmp_path: Path) -> None:
        (tmp_path / "there").mkdir()
        target, link = tmp_path / "there" / "a", tmp_path / "link"
        target.write_bytes(b"old")
        target.chmod(0o600)
        link.symlink_to(target)
        files.put(link, b"new")
        assert link.is_symlink() and target.read_bytes() == b"new"
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
        assert [path.name for path in target.parent.iterdir()] == ["a"]

    def test_file_and_folder_reach_the_disc(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced, real = [], os.fsync

        def fsync(handle: int) -> None:
            synced.append(stat.S_ISDIR(os.fstat(handle).st_mode))
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)
        files.put(tmp_path / "a", b"new")
        assert synced == [False, True]

    def test_parts_of_killed_writes_are_removed_after_an_hour(self, tmp_path: Path) -> None:
        names = ["a.4711.part", "a.0123456789abcdef.part", "b.0123456789abcdef.part", "a.my.part"]
        for name in names:
            (tmp_path / name).write_bytes(b"half")
            os.utime(tmp_path / name, (0, time.time() - 7200))
        (tmp_path / "a.fedcba9876543210.part").write_bytes(b"being written")
        files.put(tmp_path / "a", b"new")
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {"a", "b.0123456789abcdef.part", "a.my.part", "a.fedcba9876543210.part"}

    def test_many_threads_write_one_file(self, tmp_path: Path) -> None:
        """Every read meets one whole file, and every write succeeds."""
        path = tmp_path / "a"

        def save(number: int) -> None:
            files.write(path, "test", {"w": torch.full((50_000,), float(number))}, number)

        def load() -> None:
            found, number = files.read(path, "test")
            assert bool((found["w"] == number).all())

        save(0)
        with ThreadPoolExecutor(8) as pool:
            done = [pool.submit(save, number) for number in range(40)]
            done += [pool.submit(load) for _ in range(120)]
            for each in done:
                each.result()
        assert [found.name for found in tmp_path.iterdir()] == ["a"]

    def test_a_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="`path` must be the path of a file; .* is a folder"):
            files.write(tmp_path, "test", {}, {})


class TestDamage:
    def test_every_flipped_bit_is_noticed(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        files.write(path, "test", {"w": torch.randn(40)}, {"name": "α", "x": 1})
        whole = path.read_bytes()
        for bit in torch.randperm(8 * len(whole))[:400].tolist():
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match="`path` must be"):
                files.read(path, "test")

    @pytest.mark.parametrize("version", ["1", "3", "1.5", "-1", "new", "", None])
    def test_another_version_is_refused(self, tmp_path: Path, version: str | None) -> None:
        metadata = {"format": "pyro_opu", "kind": "test", "config": "{}"}
        metadata |= {} if version is None else {"version": version}
        save_file({"w": torch.ones(2)}, str(tmp_path / "a"), metadata)
        with pytest.raises(ValueError, match="format version 2; .* another pyro_opu"):
            files.read(tmp_path / "a", "test")

    def test_a_version_without_a_checksum_is_refused(self, tmp_path: Path) -> None:
        metadata = {"format": "pyro_opu", "kind": "test", "config": "{}", "version": "2"}
        save_file({"w": torch.ones(2)}, str(tmp_path / "a"), metadata)
        with pytest.raises(ValueError, match="the checksum of"):
            files.read(tmp_path / "a", "test")

    @pytest.mark.parametrize("config", ["", "{", "[" * 100_000, '{"a": 1e}'])
    def test_a_broken_description(self, tmp_path: Path, config: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json, "dumps", lambda _: config)
            files.write(tmp_path / "a", "test", {"w": torch.ones(2)}, {})
        with pytest.raises(ValueError, match="description is whole"):
            files.read(tmp_path / "a", "test")

    @pytest.mark.parametrize(
        "plain",
        [
            {},
            [],
            {"tensor": "w"},
            {"dict": [1]},
            {"dict": 3},
            {"list": {"a": 1}},
            {"tag": 1, "two": 2},
            {"tensor": ["w"]},
            None,
        ],
    )
    def test_a_broken_tree(self, plain: object) -> None:
        with pytest.raises(ValueError, match="as pyro_opu wrote it; it is damaged"):
            files.unflatten({}, plain)
        deep: object = {"value": 1}
        for _ in range(5000):
            deep = {"list": [deep]}
        with pytest.raises(ValueError, match="RecursionError"):
            files.unflatten({}, deep)


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "header", "pickle"])
def test_corrupt_files_are_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a"
    files.write(path, "test", tensors(), {"x": 1})
    whole = path.read_bytes()
    if damage == "pickle":
        torch.save(tensors(), path)
    else:
        parts = {
            "empty": b"",
            "text": b"hello, this is no tensor file",
            "cut": whole[: len(whole) // 2],
            "header": b"\xff" * 16 + whole[16:],
        }
        path.write_bytes(parts[damage])
    with pytest.raises(ValueError, match="corrupt or of another format"):
        files.read(path, "test")


def test_files_of_another_kind_or_library_are_refused(tmp_path: Path) -> None:
    files.write(tmp_path / "a", "apple", {"w": torch.ones(2)}, {})
    with pytest.raises(ValueError, match="must be a pear file .* holds pyro_opu/apple"):
        files.read(tmp_path / "a", "pear")
    save_file({"w": torch.ones(2)}, str(tmp_path / "b"))
    with pytest.raises(ValueError, match="holds unknown/unknown"):
        files.read(tmp_path / "b", "pear")


def test_nested_state_round_trip(tmp_path: Path) -> None:
    network = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1, betas=(0.5, 0.99))
    network(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    tree = {
        "optimizer": optimizer.state_dict(),
        "history": [{"step": 1, "loss": 0.1 + 0.2}, {"step": 2, "loss": float("nan")}],
        "nothing": None,
        "flag": True,
        "empty": {},
    }
    taken, plain = files.flatten(tree)
    files.write(tmp_path / "a", "test", taken, plain)
    found = files.unflatten(*files.read(tmp_path / "a", "test"))
    assert found["history"][0] == tree["history"][0] and found["nothing"] is None
    assert found["flag"] is True and found["empty"] == {}
    other = torch.optim.Adam(network.parameters())
    other.load_state_dict(found["optimizer"])
    assert other.param_groups[0]["lr"] == 0.1 and tuple(other.param_groups[0]["betas"]) == (
        0.5,
        0.99,
    )
    for parameter in network.parameters():
        mine, theirs = other.state[parameter], optimizer.state[parameter]
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_names_with_dots_do_not_collide() -> None:
    tree = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, "list": [torch.tensor(2.0), (1, 2)]}
    found = files.unflatten(*files.flatten(tree))
    assert found["a.b"] == 0 and found["a"]["b"] == 1
    assert found["list"][0] == 2 and found["list"][1] == [1, 2]  # tuples come back as lists
