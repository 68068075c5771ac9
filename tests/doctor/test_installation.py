"""The installation under the doctor: this one, one without vLLM, and such as cannot work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import lynx_ascend
from lynx_ascend import _C
from lynx_ascend.cli import app
from lynx_ascend.codec import ops
from lynx_ascend.doctor import codec_check, installation
from lynx_ascend.doctor.finding import Finding, Status

GOOD = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
ROOT = Path(lynx_ascend.__file__).parents[1]


def findings(environ: dict[str, str] = GOOD) -> dict[str, Finding]:
    return {finding.name: finding for finding in installation.examine(environ)}


def problems(environ: dict[str, str] = GOOD) -> dict[str, str]:
    return {name: f.found for name, f in findings(environ).items() if f.status is Status.PROBLEM}


def install(folder: Path, module: str, version: str, body: str = "") -> None:
    """A package as pip leaves it: the module and its metadata."""
    (folder / module).mkdir(parents=True)
    (folder / module / "__init__.py").write_text(body, encoding="utf-8")
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n", encoding="utf-8")
    (info / "top_level.txt").write_text(f"{module}\n", encoding="utf-8")


def test_this_installation_is_well() -> None:
    pytest.importorskip("vllm")
    found = findings()
    assert {f.name: f.found for f in found.values() if f.status is Status.PROBLEM} == {}
    assert found["vllm"].status is found["plugin"].status is found["codec"].status is Status.OK
    assert torch.__version__ in found["torch"].found and _C.isa() in found["_C"].found


def test_json_is_one_object() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"], env=GOOD)
    report = json.loads(result.stdout)
    assert result.exit_code == 0 and report["healthy"] is True
    assert {"python", "torch", "vllm", "_C", "codec", "codec speed"} <= {f["name"] for f in report["findings"]}
    assert "codec speed" in result.stderr  # the lines


def test_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # type: ignore[arg-type]  as if it were not installed
    found = findings({})
    assert found["vllm"].status is Status.WARNING and "not installed" in found["vllm"].found
    assert "plugin" not in found and "VLLM_USE_V2_MODEL_RUNNER" not in found
    assert found["codec"].status is Status.OK


def test_the_doctor_does_not_import_vllm() -> None:
    code = "import sys; from lynx_ascend.doctor import installation, pair; list(installation.examine({}))"
    code += "; print('vllm' in sys.modules)"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120)
    assert done.stdout == "False\n", done.stderr


def run(root: Path, environ: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with the package that lies in `root`."""
    command = [sys.executable, "-m", "lynx_ascend.cli", "doctor", *args]
    environ = {**os.environ, **environ, "PYTHONPATH": str(root)}
    return subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, whose compiled module is an empty file."""
    folder = tmp_path_factory.mktemp("damaged")
    shutil.copytree(ROOT / "lynx_ascend", folder / "lynx_ascend", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (folder / "lynx_ascend" / f"_C{EXTENSION_SUFFIXES[0]}").touch()
    return folder


def test_kernels_that_do_not_load(damaged: Path) -> None:
    done = run(damaged, GOOD, "--json")
    report = json.loads(done.stdout)
    found = {finding["name"]: finding for finding in report["findings"]}
    assert done.returncode == 1 and found["_C"]["status"] == "problem" and "_C" in found["_C"]["found"]
    assert found["python"]["status"] == "ok" and "codec" not in found
    assert "Traceback" not in done.stderr


def test_a_pair_without_kernels(damaged: Path) -> None:
    done = run(damaged, {}, "--prefill", "http://127.0.0.1:9", "--decode", "http://127.0.0.1:9")
    assert done.returncode == 1 and done.stdout.startswith("doctor: lynx_ascend._C could not be loaded")
    assert "Traceback" not in done.stderr


def test_kernels_that_this_machine_has_not() -> None:
    done = run(ROOT, {**GOOD, "LYNX_ASCEND_ISA": "mmx"}, "--json")
    problems = {f["name"]: f for f in json.loads(done.stdout)["findings"] if f["status"] == "problem"}
    assert done.returncode == 1 and list(problems) == ["_C"] and "mmx" in problems["_C"]["found"]


@pytest.mark.parametrize(("module", "name"), [("vllm", "vllm"), ("vllm_ascend", "vllm-ascend")])
def test_unsupported_release(module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, module, "0.9.1")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, module, raising=False)
    found = findings()[name]
    assert found.status is Status.PROBLEM and found.found == "0.9.1 is not supported" and "0.23" in found.remedy


def test_torch_npu_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "torch_npu", "2.9.0", "raise ImportError('libascendcl.so: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    assert problems()["_npu"] == "torch_npu 2.9.0, but: libascendcl.so: cannot open shared object file"


def test_plugin_that_is_not_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm")
    monkeypatch.setattr(installation, "GROUP", "vllm.no_such_group")
    assert "no entry point lynx_ascend" in problems()["plugin"]


def test_plugin_of_another_value(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm")
    monkeypatch.setattr(installation, "REGISTER", "lynx_ascend.elsewhere:register")
    assert "not lynx_ascend.elsewhere:register" in problems()["plugin"]


def test_environment() -> None:
    pytest.importorskip("vllm")
    assert set(problems({"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_PLUGINS": "other,more"})) == {
        "VLLM_USE_V2_MODEL_RUNNER",
        "VLLM_PLUGINS",
    }
    assert problems({**GOOD, "VLLM_PLUGINS": "other,lynx_ascend"}) == {}
    assert findings({})["VLLM_USE_V2_MODEL_RUNNER"].status is Status.WARNING


def test_slower_kernels_than_the_machine_has() -> None:
    best = _C.isa()
    if best == "portable":
        pytest.skip("this machine has none but the portable kernels")
    _C.use_isa("portable")
    try:
        found = findings()["_C"]
    finally:
        _C.use_isa(best)
    assert found.status is Status.WARNING and best in found.remedy


@pytest.mark.parametrize("work", ["encode", "decode"])
def test_wrong_bits_are_seen(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(ops, work)

    def one_bit_off(*args: torch.Tensor) -> None:
        real(*args)
        target = args[-1]  # the residual's payload, or the cache
        target.view(torch.uint8).view(-1)[-1] ^= 1

    monkeypatch.setattr(ops, work, one_bit_off)
    found = codec_check.same_bits()
    assert found.status is Status.PROBLEM
    assert ("residual" if work == "encode" else "anchor decode, full decode") in found.found


def test_exit_status_of_a_problem() -> None:
    pytest.importorskip("vllm")
    result = CliRunner().invoke(app, ["doctor"], env={"VLLM_USE_V2_MODEL_RUNNER": "1"})
    assert result.exit_code == 1 and "-> set VLLM_USE_V2_MODEL_RUNNER=0" in result.stdout
