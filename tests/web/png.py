"""Pictures of the dashboard made small: PNG with a palette, by the standard library alone."""

import struct
import zlib
from collections import Counter
from collections.abc import Iterator

SIGNATURE = b"\x89PNG\r\n\x1a\n"
PALETTE_MAX = 256
# Colours of smoothed edges that differ by less look the same.
STEP = 8


def with_palette(picture: bytes) -> bytes:
    """The same picture with at most 256 colours: a third of the size."""
    width, height, pixels = pixels_of(picture)
    exact = Counter(zip(*[iter(pixels)] * 3, strict=True))
    near = Counter[tuple[int, ...]]()
    for colour, number in exact.items():
        near[tuple(part // STEP for part in colour)] += number
    # Of each group of near colours, the one that is seen most.
    best: dict[tuple[int, ...], tuple[int, int, int]] = {}
    for colour, _ in exact.most_common():
        best.setdefault(tuple(part // STEP for part in colour), colour)
    palette = [best[group] for group, _ in near.most_common(PALETTE_MAX)]
    index = {colour: nearest(palette, colour) for colour in exact}
    row = iter(zip(*[iter(pixels)] * 3, strict=True))
    body = b"".join(b"\0" + bytes(index[next(row)] for _ in range(width)) for _ in range(height))
    flat = bytes(part for colour in palette for part in colour)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = ((b"IHDR", header), (b"PLTE", flat), (b"IDAT", zlib.compress(body, 9)), (b"IEND", b""))
    return SIGNATURE + b"".join(chunk(kind, content) for kind, content in parts)


def nearest(palette: list[tuple[int, int, int]], colour: tuple[int, ...]) -> int:
    def distance(at: int) -> int:
        return sum((one - other) ** 2 for one, other in zip(palette[at], colour, strict=True))

    return min(range(len(palette)), key=distance)


def pixels_of(picture: bytes) -> tuple[int, int, bytes]:
    """Width, height and the bytes of red, green and blue, of what Chromium writes."""
    content = dict[bytes, bytes]()
    for kind, found in chunks(picture):
        content[kind] = content.get(kind, b"") + found
    width, height, depth, colour = struct.unpack(">IIBB", content[b"IHDR"][:10])
    assert (depth, colour) in ((8, 2), (8, 6)), "8 bits, with or without alpha"
    size = 3 if colour == 2 else 4
    raw = zlib.decompress(content[b"IDAT"])
    stride = width * size
    rows: list[bytes] = []
    above = bytearray(stride)
    for at in range(0, height * (stride + 1), stride + 1):
        above = unfiltered(raw[at], bytearray(raw[at + 1 : at + 1 + stride]), above, size)
        rows.append(bytes(above))
    whole = b"".join(rows)
    if size == 4:
        whole = bytes(part for at in range(0, len(whole), 4) for part in whole[at : at + 3])
    return width, height, whole


def chunks(picture: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(picture):
        (size,) = struct.unpack(">I", picture[at : at + 4])
        yield picture[at + 4 : at + 8], picture[at + 8 : at + 8 + size]
        at += 12 + size


def chunk(kind: bytes, content: bytes) -> bytes:
    checked = kind + content
    return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))


def unfiltered(kind: int, row: bytearray, above: bytearray, size: int) -> bytearray:
    """One row, by the five filters of PNG."""
    for at in range(len(row)):
        left = row[at - size] if at >= size else 0
        up = above[at]
        if kind == 1:
            row[at] = (row[at] + left) & 255
        elif kind == 2:
            row[at] = (row[at] + up) & 255
        elif kind == 3:
            row[at] = (row[at] + (left + up) // 2) & 255
        elif kind == 4:
            corner = above[at - size] if at >= size else 0
            guess = left + up - corner
            near = min((left, up, corner), key=lambda each: abs(guess - each))
            row[at] = (row[at] + near) & 255
    return row
