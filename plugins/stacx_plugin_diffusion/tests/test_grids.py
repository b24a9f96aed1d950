"""Sheets of samples."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from stacx_plugin_diffusion.grids import class_diversity, write_grid
from stacx_plugin_diffusion.pictures import from_picture, to_picture


def test_samples_lie_row_by_row_and_small_ones_are_enlarged(tmp_path):
    media = torch.tensor([0.0, 0.2, 0.4, 0.6, 0.8])[:, None, None, None].expand(5, 1, 8, 8)
    write_grid(tmp_path / "grids" / "first.png", media, columns=3)
    with Image.open(tmp_path / "grids" / "first.png") as sheet:
        assert sheet.size == (2 + 3 * 66, 2 + 2 * 66)
        centres = [sheet.getpixel((34 + 66 * column, 34 + 66 * row)) for row in range(2) for column in range(3)]
    assert [centre[0] for centre in centres] == [0, 51, 102, 153, 204, 255]


def test_large_pictures_keep_their_size_and_captions_stand_below(tmp_path):
    media = torch.zeros(2, 3, 70, 90)
    media[:, 0] = 1
    write_grid(tmp_path / "grid.png", media, columns=8, captions=["red", "a caption that is much too long for it"])
    with Image.open(tmp_path / "grid.png") as sheet:
        assert sheet.size == (2 + 2 * 92, 2 + 84)
        assert sheet.getpixel((40, 40)) == (255, 0, 0)
        below = sheet.crop((0, 72, 90, 86)).convert("L")
        assert below.getextrema()[0] < 128
        assert sheet.crop((184, 0, 186, 86)).convert("L").getextrema() == (255, 255)


def test_what_makes_no_grid(tmp_path):
    with pytest.raises(ValueError, match="0 samples"):
        write_grid(tmp_path / "grid.png", torch.zeros(0, 1, 8, 8), columns=3)
    with pytest.raises(ValueError, match="1 captions for 2 samples"):
        write_grid(tmp_path / "grid.png", torch.zeros(2, 1, 8, 8), columns=3, captions=["a"])
    write_grid(tmp_path / "grid.png", torch.full((1, 1, 8, 8), torch.nan), columns=1)


def test_diversity_is_the_mean_deviation_within_a_class():
    media = torch.tensor([[0.0, 0.5], [1.0, 0.5], [0.3, 0.3], [0.7, 0.9], [0.7, 0.9]]).reshape(5, 1, 1, 2)
    found = class_diversity(media, ["one", "one", "two", "three", "three"])
    assert list(found) == ["one", "three"]
    assert found["one"] == pytest.approx(0.25)
    assert found["three"] == 0


@given(st.sampled_from([1, 3]), st.integers(0, 2**16))
def test_a_picture_of_256_levels_comes_back(channels, seed):
    levels = torch.randint(0, 256, (channels, 3, 5), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(from_picture(to_picture(levels / 255), channels), levels / 255)
