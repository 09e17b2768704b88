"""PyIceberg's files on the local file system, by every kind of address that catalogs give."""

import pytest

from replication.tables.pyiceberg.local_io import LocalFileIO


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_file_is_made_read_and_deleted(tmp_path, prefix):
    io, location = LocalFileIO({}), f"{prefix}{tmp_path}/new folder/a%20b.avro"
    output = io.new_output(location)
    assert not output.exists() and output.location == location
    with output.create() as stream:
        stream.write(b"bytes")
    assert (tmp_path / "new folder" / "a%20b.avro").read_bytes() == b"bytes"
    with pytest.raises(FileExistsError):
        output.create()
    with output.create(overwrite=True) as stream:
        stream.write(b"other bytes")
    read = output.to_input_file()
    assert (read.exists(), len(read), len(output)) == (True, 11, 11)
    with read.open() as stream:
        stream.seek(6)
        assert (stream.read(3), stream.tell()) == (b"byt", 9)
    io.delete(read)
    assert not io.new_input(location).exists()
    for gone in (location, output):
        with pytest.raises(FileNotFoundError):
            io.delete(gone)
    with pytest.raises(FileNotFoundError):
        io.new_input(location).open()
