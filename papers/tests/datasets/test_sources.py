"""How files of data sets are found, downloaded and refused."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path

import pytest

from datasets.dataset_files import BODY, a_file, everything_in, md5, put, url
from papers.datasets import sources
from papers.datasets.sources import File, cache_folder, content


def test_root_goes_before_environment_before_cache(nowhere, tmp_path, monkeypatch):
    contents = {name: f"from {name}".encode() for name in ("root", "environment", "cache")}
    folders = {"root": tmp_path / "r", "environment": tmp_path / "e", "cache": nowhere}
    for name, folder in folders.items():
        put(folder, "sub/some.csv", contents[name])

    def file(name: str) -> File:  # only the folder that should be read has the right sum
        return a_file(md5=md5(contents[name]))

    assert content(file("cache")) == contents["cache"]
    monkeypatch.setenv("PYRO_OPU_DATA", str(folders["environment"]))  # read at the call
    assert content(file("environment")) == contents["environment"]
    assert content(file("root"), folders["root"]) == contents["root"]
    assert content(file("root"), str(folders["root"])) == contents["root"]
    monkeypatch.setenv("PYRO_OPU_DATA", "")
    assert content(file("cache")) == contents["cache"]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYRO_OPU_DATA", "~/e")
    assert content(file("environment")) == contents["environment"]


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "pyro_opu"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "pyro_opu"


@pytest.mark.parametrize("by", ["`root`", "PYRO_OPU_DATA"])
def test_given_folder_without_the_file_is_neither_filled_nor_passed_over(
    by, nowhere, tmp_path, monkeypatch, server
):
    given = tmp_path / "given"
    given.mkdir()
    put(nowhere, "sub/some.csv", BODY)  # the cache is no substitute for what was asked for
    server.answers["/some.csv"] = BODY
    if by == "PYRO_OPU_DATA":
        monkeypatch.setenv("PYRO_OPU_DATA", str(given))
    with pytest.raises(FileNotFoundError) as caught:
        content(a_file(url(server, "/some.csv")), given if by == "`root`" else None)
    message = str(caught.value)
    assert f"'sub/some.csv' is not in {str(given)!r}, the folder given by {by}." in message
    assert "set PYRO_OPU_DATA, or `root`, to a folder that holds it as 'sub/some.csv'" in message
    assert f"downloaded from {url(server, '/some.csv')} into {str(nowhere)!r}" in message
    assert everything_in(given) == [] and server.asked == []


def test_found_file_that_differs_is_an_error(nowhere, tmp_path):
    place = put(tmp_path / "given", "sub/some.csv", b"damaged")
    expected = (
        rf"{place} must be the published some\.csv, with md5 {md5(BODY)}; got {md5(b'damaged')} "
        r"\(7 bytes\)\. Replace it by the original, from http://127\.0\.0\.1:9/no\.$"
    )
    with pytest.raises(ValueError, match=expected):
        content(a_file(), tmp_path / "given")
    put(nowhere, "sub/some.csv", b"damaged")
    with pytest.raises(ValueError, match=r"or delete it and it will be downloaded again\.$"):
        content(a_file())


def test_line_ends_of_texts(tmp_path):
    windows = BODY.replace(b"\n", b"\r\n")
    put(tmp_path, "sub/some.csv", windows)
    assert content(a_file(any_line_end=True), tmp_path) == BODY
    with pytest.raises(ValueError, match="must be the published"):
        content(a_file(), tmp_path)


def test_archives_and_their_contents(tmp_path, nowhere):
    packed = gzip.compress(BODY, mtime=0)
    file = File("some.gz", md5(packed), ("http://127.0.0.1:9/no",), unpacked_md5=md5(BODY))
    with pytest.raises(FileNotFoundError, match=r"'some\.gz' is not in"):
        content(file, tmp_path)
    bare = put(tmp_path, "some", BODY)
    assert content(file, tmp_path) == BODY
    with pytest.raises(FileNotFoundError):  # what cannot be verified is not read
        content(replace(file, unpacked_md5=None), tmp_path)
    bare.write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"the published some, with md5"):
        content(file, tmp_path)
    put(tmp_path, "some.gz", packed)  # goes first
    assert content(file, tmp_path) == BODY


def test_download_is_kept_and_not_repeated(nowhere, server):
    server.answers["/some.csv"] = BODY.replace(b"\n", b"\r\n")
    file = a_file(url(server, "/some.csv"), any_line_end=True)
    assert content(file) == BODY
    assert everything_in(nowhere) == ["sub/some.csv"]
    assert (nowhere / "sub/some.csv").read_bytes() == BODY
    server.answers.clear()
    assert content(file) == BODY and content(file, download=False) == BODY
    assert server.asked == ["/some.csv"]


def test_download_from_a_file_address_and_of_an_archive(nowhere, tmp_path):
    packed = gzip.compress(BODY, mtime=0)
    source = put(tmp_path, "there/some.gz", packed)
    file = File("in/some.gz", md5(packed), (source.as_uri(),), unpacked_md5=md5(BODY))
    assert content(file) == BODY
    assert (nowhere / "in/some.gz").read_bytes() == packed


def test_next_address_where_one_fails(nowhere, server):
    server.answers["/cut"] = (BODY[:5], len(BODY))  # the connection ends early
    server.answers["/some.csv"] = BODY
    addresses = [url(server, path) for path in ("/missing", "/cut", "/some.csv", "/never")]
    assert content(a_file(*addresses)) == BODY
    assert server.asked == ["/missing", "/cut", "/some.csv"]


@pytest.mark.parametrize("download", [True, False])
def test_no_network_is_one_error_with_both_ways(download, nowhere, server):
    server.answers["/cut"] = (BODY[:5], len(BODY))
    file = a_file(url(server, "/missing"), url(server, "/cut"))
    with pytest.raises(FileNotFoundError) as caught:
        content(file, download=download)
    message = str(caught.value)
    if download:
        assert "could not be downloaded" in message
        assert f"{url(server, '/missing')}: HTTP Error 404" in message
        assert f"{url(server, '/cut')}: IncompleteRead(5 bytes read" in message
        assert caught.value.__cause__ is not None
    else:
        assert f"is not in {str(nowhere)!r}, and `download` is False" in message
        assert server.asked == []
    assert "set PYRO_OPU_DATA" in message and "with `download=True`" in message
    assert not nowhere.exists()


def test_refused_connection(nowhere):
    with pytest.raises(FileNotFoundError, match=r"could not be downloaded \(http://127\.0\.0\.1:9"):
        content(a_file())


def test_download_of_something_else_leaves_nothing_behind(nowhere, server):
    server.answers["/some.csv"] = b"<html>please log in</html>"
    address = url(server, "/some.csv")
    with pytest.raises(ValueError, match=f"{address} must be the published.*Nothing was kept"):
        content(a_file(address))
    assert not nowhere.exists()


def test_interrupted_writing_leaves_nothing_behind(nowhere, server, monkeypatch):
    server.answers["/some.csv"] = BODY
    seen = []

    def interrupt(aside, place):
        seen.append((Path(aside).read_bytes(), Path(aside).name, Path(place).exists()))
        raise KeyboardInterrupt

    monkeypatch.setattr(sources.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        content(a_file(url(server, "/some.csv")))
    ((written, name, in_place),) = seen
    assert written == BODY and not in_place
    assert re.fullmatch(r"some\.csv\.[0-9a-f]{16}\.part", name)  # of no other writer
    assert everything_in(nowhere) == []
