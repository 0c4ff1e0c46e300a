"""Frames: a JSON header and byte strings."""

import pytest

from areal_like.process.frames import pack, unpack


class TestFrames:
    def test_a_frame_is_unpacked_to_its_content(self):
        frame = unpack(pack({"step": 3, "words": ["ä"]}, [b"abc", b"", memoryview(b"de")]))
        assert frame.header == {"step": 3, "words": ["ä"]}
        assert [bytes(blob) for blob in frame.blobs] == [b"abc", b"", b"de"]

    @pytest.mark.parametrize("cut", [1, 9, 40])
    def test_a_cut_frame_is_refused(self, cut):
        whole = pack({"step": 3}, [b"abcdefgh"])
        with pytest.raises(ValueError):
            unpack(whole[:-cut] if cut < len(whole) else b"")
