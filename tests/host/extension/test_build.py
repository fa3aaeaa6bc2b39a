import ctypes
import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_nvfp4.driver.launches import HostSideError, NoCompilerError
from pytest_nvfp4.host.compile_cache import CompileCache
from pytest_nvfp4.host.extension import compilers, kept, symbols
from pytest_nvfp4.host.extension.build import CompileError, Extension, build
from tests.host.extension import sources


@sources.needs_nvcc
@pytest.mark.slow
def test_functions_of_other_libraries_are_refused_by_name(tmp_path: Path) -> None:
    declared = 'extern "C" int cublasCreate_v2(void**);\nextern "C" int f() { void* h; return cublasCreate_v2(&h); }\n'
    error = sources.refusal(declared, tmp_path)
    assert "cublasCreate_v2" in str(error)
    assert "was not imported" in str(error)


@sources.needs_nvcc
@pytest.mark.slow
def test_an_error_of_a_compiler_has_its_line(tmp_path: Path) -> None:
    error = sources.refusal("__global__ void f(float* x) {\n    x[0] = missing;\n}\n", tmp_path)
    assert isinstance(error, CompileError)
    assert (Path(error.filename or "").name, error.lineno) == ("refused.cu", 2)
    assert "missing" in str(error)


@sources.needs_nvcc
@pytest.mark.slow
def test_what_ptxas_refuses_for_its_lines_is_built_without_them(tmp_path: Path) -> None:
    file = tmp_path / "split.cu"
    file.write_text(sources.SPLIT)
    with pytest.warns(RuntimeWarning, match=r"split\.cu is built without lines, .* write each instruction in one line"):
        library, _ = build(Extension(name="split", sources=(file,), torch=False), compilers.find(cuda=True), tmp_path)
    assert b"not.b32" in library.read_bytes()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.slow
@pytest.mark.parametrize("allocates", [False, True], ids=["a guard", "the allocator"])
def test_torchs_guards_need_no_allocator_of_torch(tmp_path: Path, allocates: bool) -> None:
    file = tmp_path / "guard.cpp"
    guard = "c10::cuda::OptionalCUDAGuard guard(c10::Device(c10::kCUDA, 0));"
    use = "c10::cuda::CUDACachingAllocator::raw_alloc(8);" if allocates else ""
    file.write_text(f'#include <c10/cuda/CUDAGuard.h>\nextern "C" int number() {{ {guard} {use} return 7; }}\n')
    extension = Extension(name="guard", sources=(file,))
    found = compilers.find(cuda=True)
    if allocates:
        with pytest.raises(HostSideError, match="calls c10::cuda::CUDACachingAllocator::allocator, which has no"):
            build(extension, found, tmp_path / "built")
    else:
        library, _ = build(extension, found, tmp_path / "built")
        assert symbols.unanswered(library) == []


def test_without_nvcc_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "_nvccs", lambda: iter(()))
    with pytest.raises(NoCompilerError, match=r"unavailable, because nvcc .*pytest-nvfp4\[cuda\]"):
        compilers.find(cuda=True)


def test_without_a_compiler_for_cxx_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NoCompilerError, match=r"because no-such-compiler .*apt-get install g\+\+"):
        compilers.find(cuda=False)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_library_without_device_code_is_built(tmp_path: Path) -> None:
    file = tmp_path / "plain.cpp"
    file.write_text('#include "beside.h"\nextern "C" int number() { return NUMBER; }\n')
    (tmp_path / "beside.h").write_text("#define NUMBER 7\n")
    found = compilers.find(cuda=False)
    library, read = build(Extension(name="plain", sources=(file,), torch=False), found, tmp_path / "built")
    assert ctypes.CDLL(str(library)).number() == 7
    assert {path.name for path in read} >= {"plain.cpp", "beside.h"}
    assert symbols.unanswered(library) == []


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("folder", ["kernel", "package"])
def test_a_kept_library_is_not_used_once_a_header_has_changed(tmp_path: Path, folder: str) -> None:
    header, file = tmp_path / folder / "beside.h", tmp_path / "kernel/plain.cpp"
    header.parent.mkdir()
    file.parent.mkdir(exist_ok=True)
    file.write_text('#include "beside.h"\nextern "C" int number() { return NUMBER; }\n')
    header.write_text("#define NUMBER 7\n")
    found = dataclasses.replace(compilers.find(cuda=False), headers=(tmp_path / "package",))
    cache = CompileCache(keep=tmp_path / "kept", known=(tmp_path / "kept",))

    def built() -> tuple[str, Path | None]:
        extension = Extension(name="plain", sources=(file,), torch=False)
        key = extension.key(header.parent, found)
        return key, kept.find(cache, key, "plain", header.parent)

    key, before = built()
    library, read = build(Extension(name="plain", sources=(file,), torch=False), found, tmp_path / "built")
    kept.store(cache, key, library, read, header.parent)
    same, after = built()
    assert (before, same) == (None, key)
    assert after is not None
    header.write_text("#define NUMBER 8\n")
    assert built() == (key, None)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_function_of_the_runtime_without_a_stand_in_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plain.cpp"
    file.write_text(
        'extern "C" int cudaGraphInstantiate(void*, void*, int);\n'
        "namespace c10::cuda { struct A { static void* get(); }; }\n"
        'extern "C" int f() { return cudaGraphInstantiate(0, 0, 0) + (c10::cuda::A::get() != 0); }\n'
    )
    with pytest.raises(HostSideError, match=r"cudaGraphInstantiate.*c10::cuda::A::get\(\)|c10::cuda::A.*cudaGraph"):
        build(Extension(name="plain", sources=(file,), torch=False), compilers.find(cuda=False), tmp_path / "built")


def test_an_extension_is_built_again_with_other_compilers(tmp_path: Path) -> None:
    file = tmp_path / "plain.cpp"
    file.write_text("")
    for name in ("first", "second", "again"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name.replace('again', 'first')} 1.0\n")
        (tmp_path / name).chmod(0o755)
    extension = Extension(name="plain", sources=(file,), torch=False)
    first, second, again = (
        extension.key(tmp_path, compilers.Compilers(None, str(tmp_path / name), (), ()))
        for name in ("first", "second", "again")
    )
    assert first == again != second


@pytest.mark.parametrize("name", ["NVCC_APPEND_FLAGS", "CPATH", "LIBRARY_PATH"])
def test_an_extension_is_built_again_with_other_variables_of_the_compilers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A kernel may set them, for each problem to other values."""
    file = tmp_path / "plain.cpp"
    file.write_text("")
    extension, found = Extension(name="plain", sources=(file,), torch=False), compilers.Compilers(None, "true", (), ())
    keys = []
    for value in ("-DTILE=64", "-DTILE=128", "-DTILE=64"):
        monkeypatch.setenv(name, value)
        monkeypatch.setenv("NVFP4_ANOTHER", str(len(keys)))
        keys.append(extension.key(tmp_path, found))
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_kept_library_is_not_used_once_an_object_that_it_contains_has_changed(tmp_path: Path) -> None:
    file, other, linked = tmp_path / "plain.cpp", tmp_path / "other.cpp", tmp_path / "other.o"
    file.write_text('extern "C" int other(); extern "C" int number() { return other(); }\n')

    def compile_other(number: int) -> None:
        other.write_text(f'extern "C" int other() {{ return {number}; }}\n')
        subprocess.run(["g++", "-fPIC", "-c", str(other), "-o", str(linked)], check=True)

    compile_other(7)
    found = compilers.find(cuda=False)
    extension = Extension(name="plain", sources=(file,), linker=(str(linked), "-lm"), torch=False)
    cache = CompileCache(keep=tmp_path / "kept", known=(tmp_path / "kept",))
    library, read = build(extension, found, tmp_path / "built")
    assert ctypes.CDLL(str(library)).number() == 7
    kept.store(cache, "0" * 40, library, read, tmp_path)
    assert kept.find(cache, "0" * 40, "plain", tmp_path) is not None
    compile_other(8)
    assert kept.find(cache, "0" * 40, "plain", tmp_path) is None
