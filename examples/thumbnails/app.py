"""Small pictures of large ones: a worker that splits a folder into tasks and computes each of them.

Pictures are PPM files, which need no library. Start it with `duly worker app:worker`.
"""

from pathlib import Path
from typing import NamedTuple

from duly import AsyncClient, Context, Reject, Worker

POOL = "thumbnails"

worker = Worker(pools=[POOL], concurrency=20, processes=2)


class Picture(NamedTuple):
    """`pixels` holds three bytes for each, row after row."""

    width: int
    height: int
    pixels: bytes


@worker.task("thumbnails.folder")
async def split(ctx: Context, folder: Path, width: int = 64) -> int:
    """One task for each picture. Run again, it finds the same tasks: their keys are the same."""
    pictures = pictures_in(folder)
    async with AsyncClient(worker.url, worker.api_key) as duly:
        for number, picture in enumerate(pictures, 1):
            await duly.submit(
                "thumbnails.make",
                {"source": str(picture), "width": width},
                pool=POOL,
                idempotency_key=f"{ctx.execution_key}:{picture.name}",
            )
            ctx.progress({"submitted": number, "of": len(pictures)})
    return len(pictures)


@worker.task("thumbnails.make", run="process", timeout_s=30)
def make(ctx: Context, source: Path, width: int) -> dict[str, int | str]:
    """In a process of its own: it computes, and would hold up every other handler."""
    picture = read(source)
    small = shrink(picture, min(width, picture.width))
    target = source.parent / "small" / source.name
    target.parent.mkdir(exist_ok=True)
    # Written beside it and moved: an attempt that is killed leaves no half of a picture behind.
    draft = target.with_suffix(f".{ctx.fence}.draft")
    draft.write_bytes(encode(small))
    draft.replace(target)
    return {"target": str(target), "width": small.width, "height": small.height}


def pictures_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.ppm"))


def read(source: Path) -> Picture:
    """Rejects what no other attempt could read either."""
    try:
        kind, width, height, depth, pixels = source.read_bytes().split(maxsplit=4)
        picture = Picture(int(width), int(height), pixels)
    except ValueError:
        raise Reject(f"{source.name} is not a PPM picture") from None
    if (kind, depth) != (b"P6", b"255") or len(pixels) != 3 * picture.width * picture.height:
        raise Reject(f"{source.name} is not a PPM picture with 8 bits for each colour")
    return picture


def shrink(picture: Picture, width: int) -> Picture:
    """Each new pixel is the one at its place in the old picture."""
    height = max(picture.height * width // picture.width, 1)
    pixels = bytearray()
    for y in range(height):
        row = y * picture.height // height * picture.width
        for x in range(width):
            at = 3 * (row + x * picture.width // width)
            pixels += picture.pixels[at : at + 3]
    return Picture(width, height, bytes(pixels))


def encode(picture: Picture) -> bytes:
    return b"P6 %d %d 255\n" % (picture.width, picture.height) + picture.pixels


if __name__ == "__main__":
    worker.run()
