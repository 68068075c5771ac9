"""The message framing: round trips under any fragmentation, ProtocolError and nothing else for other bytes."""

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx_ascend.codec.config import Stream
from lynx_ascend.transport import ProtocolError
from lynx_ascend.transport import messages as msg

names = st.text(min_size=1, max_size=40)
counts = st.integers(0, 2**53)
streams = st.sampled_from(Stream)
args = st.binary(max_size=200) | st.dictionaries(st.text(max_size=9), st.text(max_size=9) | st.integers(-9, 2**60))
to_sender = (
    st.builds(msg.Hello, counts, names, streams)
    | st.builds(msg.Pull, names, counts, streams, args)
    | st.builds(msg.Cancel, names, counts)
)
to_receiver = (
    st.builds(msg.HelloReply, counts, names)
    | st.builds(msg.FrameHead, names, counts, counts, counts)
    | st.builds(msg.End, names, counts, counts, counts)
    | st.builds(msg.Fault, names, counts, st.text(max_size=99))
)


def read_all(buffer, data: bytes, cuts: list[int]) -> list:
    messages, bounds = [], [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in itertools.pairwise(bounds):
        buffer.feed(data[start:stop])
        while (message := buffer.next()) is not None:
            messages.append(message)
    return messages


@given(st.lists(to_sender, max_size=5), st.lists(st.integers(0, 600), max_size=9))
def test_what_receivers_say_survives_any_fragmentation(messages, cuts):
    assert read_all(msg.sender_buffer(), b"".join(map(msg.encode, messages)), cuts) == messages


@given(st.lists(to_receiver, max_size=5), st.lists(st.integers(0, 600), max_size=9))
def test_what_senders_say_survives_any_fragmentation(messages, cuts):
    assert read_all(msg.receiver_buffer(), b"".join(map(msg.encode, messages)), cuts) == messages


@settings(max_examples=500)
@given(st.binary(max_size=300), st.booleans())
def test_arbitrary_bytes_give_protocol_errors_only(body, framed):
    data = struct.pack("<I", len(body)) + body if framed else body
    for buffer in (msg.sender_buffer(), msg.receiver_buffer()):
        try:
            read_all(buffer, data, [])
        except ProtocolError as error:
            assert "message of" in str(error)


@given(to_sender, st.data())
def test_one_damaged_byte_never_gives_another_exception(message, data):
    wire = bytearray(msg.encode(message))
    wire[data.draw(st.integers(0, len(wire) - 1))] ^= data.draw(st.integers(1, 255))
    buffer = msg.sender_buffer()
    try:
        buffer.feed(bytes(wire))
        while (got := buffer.next()) is not None:
            assert isinstance(got, msg.Message)
    except ProtocolError:
        return


def test_the_example_of_the_document():
    hello = msg.encode(msg.Hello(1, "D", Stream.RESIDUAL))
    assert hello.hex(" ") == "0b 00 00 00 94 a5 68 65 6c 6c 6f 01 a1 44 01"


@pytest.mark.parametrize("size", [0, msg.MAX_MESSAGE + 1, 2**32 - 1])
def test_a_size_out_of_range_is_refused_before_its_bytes_come(size):
    buffer = msg.sender_buffer()
    buffer.feed(struct.pack("<I", size))
    with pytest.raises(ProtocolError, match=f"message of {size} bytes"):
        buffer.next()


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (["hello", 1, "D", 3], "3"),  # no such stream
        (["pull", "t", -1, 0, b""], ">= 0"),
        (["pull", "t", 0, 0], "length"),
        (["cancel", "t", 0, 0], "length"),
        (["cancel", "", 0], "length"),
        (["frame", "t", 0, 0, 1], "frame"),  # a sender's message, at the sender
        ({"hello": 1}, "array"),
    ],
)
def test_a_malformed_message_is_refused_and_the_field_named(body, named):
    data = msg._encoder.encode(body)
    buffer = msg.sender_buffer()
    buffer.feed(struct.pack("<I", len(data)) + data)
    with pytest.raises(ProtocolError, match=named):
        buffer.next()


def test_a_message_that_no_receiver_would_take_is_not_sent():
    with pytest.raises(ProtocolError, match=f"exceeds the cap of {msg.MAX_MESSAGE}"):
        msg.encode(msg.Pull("t", 0, Stream.ANCHOR, bytes(msg.MAX_MESSAGE)))


def test_payload_read_along_with_its_head_is_handed_over():
    buffer = msg.receiver_buffer()
    end = msg.End("t", 0, 1, 5)
    buffer.feed(msg.encode(msg.FrameHead("t", 0, 0, 5)) + b"abcde" + msg.encode(end))
    assert buffer.next() == msg.FrameHead("t", 0, 0, 5)
    assert buffer.take(5) == b"abcde"
    assert buffer.next() == end
    assert buffer.next() is None
