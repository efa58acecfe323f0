import ssl
import subprocess
from pathlib import Path

import pytest
from tools.java_trust import java_options

from tidegate.java import java_home


def test_java_reads_every_certificate_that_python_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = ssl.get_default_verify_paths().cafile or ""
    if not Path(bundle).is_file():
        pytest.skip("this machine has no bundle of certificates")
    monkeypatch.setenv("SSL_CERT_FILE", bundle)
    java_options(tmp_path)
    keytool = [str(java_home() / "bin/keytool"), "-list", "-storepass", "changeit"]
    listed = subprocess.run(
        [*keytool, "-keystore", str(tmp_path / "trust.jks")], capture_output=True, text=True, check=True
    )
    trusted = ssl.create_default_context(cafile=bundle).get_ca_certs(binary_form=True)
    assert trusted
    assert listed.stdout.count("trustedCertEntry") == len(trusted)


def test_without_ssl_cert_file_java_keeps_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert java_options(tmp_path) == []
