import pytest

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.host.extension import flags

_TARGET = ["-lineinfo", "-gencode", "arch=compute_100a,code=[compute_100a,sm_100a]", "--no-compress"]


@pytest.mark.parametrize(
    "options",
    [
        ["-arch=sm_100a"],
        ["-arch", "sm_90a"],
        ["-gencode=arch=compute_100a,code=sm_100a"],
        ["-gencode", "arch=compute_100a,code=sm_100a"],
        ["-gencode=arch=compute_100a,code=sm_100a", "-gencode=arch=compute_120a,code=sm_120a"],
        ["--generate-code=arch=compute_90,code=sm_90", "--gpu-code", "sm_90"],
        ["-O3", "-lineinfo", "--threads=8"],
    ],
)
def test_architectures_and_what_only_takes_time_are_replaced(options: list[str]) -> None:
    assert flags.for_device(options, "sm_100a") == _TARGET


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ([""], ()),
        (["", "-O3"], ("-O3",)),
        (["-O3 -DN=3", "-Xptxas -v"], ("-O3", "-DN=3", "-Xptxas", "-v")),
        (["-DNAME='a b'", r"-DTEXT=\"x\""], ("-DNAME=a b", '-DTEXT="x"')),
        (["-DN=3", "-I", "include"], ("-DN=3", "-I", "include")),
    ],
)
def test_options_are_split_as_by_the_shell_that_torch_runs(options: list[str], given: tuple[str, ...]) -> None:
    assert flags.split(options) == given


def test_the_architecture_is_that_of_the_job() -> None:
    assert "arch=compute_90a,code=[compute_90a,sm_90a]" in flags.for_device(["-arch=sm_100a"], "sm_90a")


def test_options_that_change_the_code_are_kept() -> None:
    own = ["--use_fast_math", "-maxrregcount=128", "-Xptxas", "-O1", "-DN=3", "-std=c++17", "-I", "include"]
    kept = flags.for_device(own, "sm_100a")
    assert [option for option in kept if option not in _TARGET] == [option for option in own if option != "-O1"]


@pytest.mark.parametrize(
    ("option", "least", "used"),
    [
        ("-std=c++17", 20, "-std=c++20"),
        ("--std=gnu++14", 17, "-std=c++17"),
        ("-std=c++98", 17, "-std=c++17"),
        ("-std=c++17", 17, "-std=c++17"),
        ("-std=c++23", 20, "-std=c++23"),
        ("-std=c++2a", 20, "-std=c++2a"),
        ("-std=c++17", 0, "-std=c++17"),
    ],
)
def test_a_standard_is_the_least_that_torch_takes(option: str, least: int, used: str) -> None:
    assert flags.of_standard(["-O3", option], least) == ["-O3", used]


def test_device_debug_excludes_line_information() -> None:
    assert "-lineinfo" not in flags.for_device(["-G"], "sm_100a")


@pytest.mark.parametrize("option", ["-rdc=true", "-dc", "--relocatable-device-code=true"])
def test_relocatable_device_code_is_refused(option: str) -> None:
    with pytest.raises(HostSideError, match="links device code of several files"):
        flags.for_device([option], "sm_100a")
    flags.for_device(["-rdc=false"], "sm_100a")


def test_libraries_of_cuda_are_not_linked() -> None:
    assert flags.for_linking(["-lcuda", "-lcudart", "-L/opt/x", "-lm"]) == ["-L/opt/x", "-lm"]
