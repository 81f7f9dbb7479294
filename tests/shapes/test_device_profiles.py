from __future__ import annotations

import json
from pathlib import Path

import pytest

from roofgap.shapes.device import (
    FOLDER,
    NUMBERS,
    SCHEMA_FILE,
    Bandwidth,
    DeviceProfile,
    Measured,
    choose_bandwidth,
    list_devices,
    load_device,
)
from roofgap.shapes.errors import RoofgapError

NAMES = {
    "a10",
    "a100-sxm4-40gb",
    "a100-sxm4-80gb",
    "h100-sxm",
    "h200",
    "mi300x",
    "rtx-3060",
    "rtx-4090",
}


def without_measured(name: str) -> DeviceProfile:
    return load_device(name).model_copy(update={"measured": None})


def test_what_is_shipped() -> None:
    profiles = list_devices()
    assert {profile.name for profile in profiles} >= NAMES
    assert [f"{profile.name}.json" for profile in profiles] == [
        path.name for path in sorted(FOLDER.glob("*.json")) if path != SCHEMA_FILE
    ]


def test_schema_beside_the_files_is_current() -> None:
    assert json.loads(SCHEMA_FILE.read_text()) == DeviceProfile.model_json_schema()


@pytest.mark.parametrize("profile", list_devices(), ids=lambda p: p.name)
def test_each_number_has_a_source(profile: DeviceProfile) -> None:
    for field in NUMBERS:
        assert (profile.source_of(field) is None) == (getattr(profile, field) is None), field
    numeric = {
        name
        for name, value in profile
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "schema_version"
    }
    assert numeric <= set(NUMBERS)


@pytest.mark.parametrize("profile", list_devices(), ids=lambda p: p.name)
def test_numbers_agree_with_each_other(profile: DeviceProfile) -> None:
    assert profile.shared_bytes_per_block <= profile.shared_bytes_per_sm
    assert profile.target.startswith("sm_" if profile.vendor == "nvidia" else "gfx")
    if profile.vendor == "nvidia":
        assert profile.target == "sm_" + profile.compute_capability.replace(".", "")
        assert profile.shared_bytes_per_sm - profile.shared_bytes_per_block == 1024
    assert profile.warp_size == (32 if profile.vendor == "nvidia" else 64)
    assert profile.fp16_tflops and profile.int8_tops
    assert 1.9 < profile.int8_tops / profile.fp16_tflops < 4.1
    if profile.measured:
        assert profile.spec_read_gbps
        for gbps in (profile.measured.read_gbps, profile.measured.copy_gbps):
            assert gbps is None or 0.5 < gbps / profile.spec_read_gbps < 1.05


# Dense fp16 operations of one SM in a clock, and the clock in MHz that the vendor's peak stands for.
# Catches a sparse figure taken for a dense one.
PER_CLOCK = {
    "a10": (1024, 1695),
    "a100-sxm4-80gb": (2048, 1410),
    "a100-sxm4-40gb": (2048, 1410),
    "h100-sxm": (4096, 1830),
    "h200": (4096, 1830),
    "mi300x": (2048, 2100),
    "rtx-3060": (512, 1777),
    "rtx-4090": (512, 2520),
}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_tensor_throughput_is_the_dense_one(name: str) -> None:
    profile = load_device(name)
    operations, clock_mhz = PER_CLOCK[name]
    assert profile.fp16_tflops == pytest.approx(profile.sm_count * clock_mhz * operations / 1e6, rel=0.01)
    assert profile.bf16_tflops == profile.fp16_tflops


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("h200", "h200"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 3060", "rtx-3060"),
        ("rtx3060", "rtx-3060"),
        ("RTX_4090", "rtx-4090"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("a100-40gb", "a100-sxm4-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_names_and_aliases(asked: str, name: str) -> None:
    assert load_device(asked).name == name


def test_no_two_profiles_answer_to_one_name() -> None:
    plain = [
        "".join(filter(str.isalnum, name.lower()))
        for profile in list_devices()
        for name in {profile.name, profile.title, *profile.aliases}
    ]
    for name in set(plain):
        assert load_device(name) is not None
    owners: dict[str, set[str]] = {}
    for profile in list_devices():
        for name in (profile.name, profile.title, *profile.aliases):
            owners.setdefault("".join(filter(str.isalnum, name.lower())), set()).add(profile.name)
    assert all(len(names) == 1 for names in owners.values()), owners


@pytest.mark.parametrize(("asked", "guess"), [("rtx-3090", "rtx-4090"), ("h2000", "h200"), ("a1000", "a10")])
def test_an_unknown_name_lists_what_exists(asked: str, guess: str) -> None:
    with pytest.raises(RoofgapError) as caught:
        load_device(asked)
    assert all(name in str(caught.value) for name in NAMES)
    assert f"id you mean {guess}" in str(caught.value)


def test_an_empty_name_is_unknown() -> None:
    with pytest.raises(RoofgapError, match="not known"):
        load_device("")


# --- the bandwidth rule


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (None, Bandwidth(4800, "spec")),
        ({"copy_gbps": 4100.0}, Bandwidth(4100, "measured copy")),
        ({"copy_gbps": 4100.0, "read_gbps": 4000.0}, Bandwidth(4000, "measured read")),
        ({"launch_floor_us": 0.9}, Bandwidth(4800, "spec")),
    ],
)
def test_measured_read_then_measured_copy_then_spec(measured, expected: Bandwidth) -> None:  # type: ignore[no-untyped-def]
    record = Measured(provenance="measured", method="by hand", **measured) if measured else None
    assert load_device("h200").model_copy(update={"measured": record}).bandwidth() == expected


def test_the_rtx_3060_goes_by_its_published_copy_figure() -> None:
    profile = load_device("rtx-3060")
    assert profile.bandwidth() == Bandwidth(323.9, "measured copy")
    assert profile.spec_read_gbps == 360
    assert profile.measured and profile.measured.provenance == "published"
    assert profile.launch_floor_us is None


def test_no_bandwidth_at_all() -> None:
    profile = without_measured("h200").model_copy(update={"spec_read_gbps": None})
    with pytest.raises(RoofgapError, match="device measure"):
        profile.bandwidth()


def test_a_figure_by_hand_wins_and_keeps_the_profile() -> None:
    roof, profile = choose_bandwidth(100.0, "h200")
    assert roof == Bandwidth(100, "given")
    assert profile and profile.name == "h200"
    assert choose_bandwidth(100.0, None) == (Bandwidth(100, "given"), None)
    with pytest.raises(RoofgapError, match=r"--bandwidth.*--device"):
        choose_bandwidth(None, None)


def test_last_level_cache() -> None:
    assert load_device("mi300x").last_level_cache_bytes == 256 << 20
    assert load_device("a10").last_level_cache_bytes == load_device("a10").l2_bytes


# --- files


def test_saved_and_read_back(tmp_path: Path) -> None:
    measured = Measured(
        provenance="measured",
        read_gbps=4100.5,
        copy_gbps=4099.0,
        launch_floor_us=0.87,
        date="2026-11-29",
        versions={"torch": "2.11"},
        method="largest of 20 reads over 2 GiB",
    )
    profile = load_device("h200").model_copy(update={"measured": measured})
    path = tmp_path / "new" / "h200.json"
    profile.save(path)
    assert load_device(path) == profile
    assert [entry.name for entry in path.parent.iterdir()] == ["h200.json"]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "h200.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RoofgapError, match="No space left"):
        load_device("h200").save(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_save_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RoofgapError, match="cannot be written"):
        load_device("h200").save(tmp_path / "file" / "h200.json")


def broken(**changes: object) -> str:
    document = json.loads((FOLDER / "a10.json").read_text()) | changes
    return json.dumps({key: value for key, value in document.items() if value is not ...})


SOURCES = json.loads((FOLDER / "a10.json").read_text())["sources"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["json"]),
        ("{", ["json"]),
        ("[]", ["object"]),
        (broken(schema_version=2), ["schema_version"]),
        (broken(spec_read_gbps=-600), ["spec_read_gbps", "greater than 0"]),
        (broken(spec_read_gbps=float("nan")), ["spec_read_gbps"]),
        (broken(spec_read_gbps="600"), ["spec_read_gbps"]),
        (broken(sm_count=72.5), ["sm_count"]),
        (broken(sm_count=True), ["sm_count"]),
        (broken(colour="red"), ["colour"]),
        (broken(target="86"), ["target"]),
        (broken(name="../a10"), ["name"]),
        (broken(sources={}), ["exactly one source", "sm_count"]),
        (broken(sources=SOURCES | {"hearsay": ["sm_count"]}), ["exactly one source", "sm_count"]),
        (broken(sources=SOURCES | {"hearsay": ["colour"]}), ["exactly one source", "colour"]),
        (broken(sources=SOURCES | {"hearsay": ["l3_bytes"]}), ["exactly one source", "l3_bytes"]),
        (broken(measured={"provenance": "measured"}), ["measured.method"]),
        (broken(measured={"provenance": "guessed", "method": "m"}), ["measured.provenance"]),
    ],
)
def test_a_broken_file_is_one_error_that_names_it(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(RoofgapError) as caught:
        load_device(path)
    assert all(word.lower() in str(caught.value).lower() for word in [str(path), *words]), caught.value


@pytest.mark.parametrize("name", ["absent.json", "folder.json"])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(RoofgapError, match="cannot be read"):
        load_device(tmp_path / name)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(RoofgapError):
        load_device(tmp_path / "x.json")
