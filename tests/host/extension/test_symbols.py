import pytest

from pytest_nvfp4.host.extension import symbols


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("_ZN3c104cuda21CUDACachingAllocator9allocatorE", True),
        ("_ZN2at4cuda24getCurrentCUDABlasHandleEb", True),
        ("cublasCreate_v2", True),
        ("cudaGraphInstantiate", True),
        ("aoti_torch_get_current_cuda_stream", True),
        ("aoti_torch_get_data_ptr", False),
        ("_ZN3c105ErrorD1Ev", False),
        ("PyLong_FromLong", False),
    ],
)
def test_what_an_extension_may_need(name: str, refused: bool) -> None:
    assert symbols.is_refused(name) == refused
