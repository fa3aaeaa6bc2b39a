"""Files that look like credentials, by name and by content: ``nvfp4 exec --mount`` sends none that is not named.

The names are those of the usual tools' own files; the forms of tokens are those that their makers document so that
scanners find them. Content of archives and of encrypted files is not looked into.
"""

from __future__ import annotations

import codecs
import fnmatch
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

_FILES = (
    *(".env", ".env.*", "*.env", ".envrc*", ".netrc", "_netrc", ".authinfo*", ".pgpass", "pgpass.conf", ".my.cnf"),
    *(".pypirc", ".npmrc", ".yarnrc", ".yarnrc.yml", "pip.conf", ".condarc", ".boto", ".s3cfg", ".passwd-s3fs"),
    *(".modal.toml", ".popcorn.yaml", ".git-credentials", ".gitcookies", ".hgrc", ".dockercfg", ".dockerconfigjson"),
    *("kubeconfig*", "*.kubeconfig", "*.kubeconfig.*", ".vault-token", ".terraformrc", "*.tfstate", "*.tfstate.*"),
    *("*.pem", "*.key", "*.p8", "*.p12", "*.pfx", "*.ppk", "*.jks", "*.keystore", "*.kdbx", "*.gpg", "*.ovpn"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*_rsa", "*_ed25519", "*deploy_key*", "*deploy-key*"),
    *(
        "credentials",
        "credentials.[cijtxy]*",
        "credentials*.json",
        "*_credentials.json",
        "*-credentials.json",
        "cookies.txt",
    ),
    *("*service*account*.json", "client_secret*.json", "*.secret", "*.secrets", "secret", "secrets", "secrets.*"),
    *("token", "tokens", "*.token", "*_token", "*-token", "token.txt", "token.json", ".token*", "*password*.txt"),
    *("*.passwd", ".htpasswd", "password", "passwords", "gha-creds-*.json", "rclone.conf", ".databrickscfg"),
)
_FOLDERS = (
    *(".aws", ".azure", ".gcloud", "gcloud", ".docker", ".kube", ".ssh", ".gnupg", ".modal", ".oci", ".vault"),
    *("secret", "secrets", ".secret", ".secrets", "credentials", ".credentials", ".password-store", ".terraform.d"),
)
_CONTENT: tuple[tuple[str, bytes], ...] = (
    ("a private key", rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----|PuTTY-User-Key-File-\d"),
    ("a key of AWS", rb"\b(AKIA|ASIA)[0-9A-Z]{16}\b|(?i:aws_secret_access_key)[\"']?\s*[=:]\s*[\"']?[\w/+]{20,}"),
    ("a token of GitHub or GitLab", rb"\bgh[pousr]_[A-Za-z0-9]{36}|\bgithub_pat_\w{22,}|\bglpat-[\w-]{20}"),
    ("a token of Slack", rb"\bxox[abeoprs]-[\w-]{10,}"),
    ("a key of Google", rb"\bAIza[\w-]{35}|\"type\"\s*:\s*\"(service_account|authorized_user|external_account)\""),
    ("a key of a language model's service", rb"\bsk-(ant-|proj-)?[A-Za-z0-9_-]{24,}|\bhf_[A-Za-z0-9]{30,}"),
    ("a token of Modal", rb"\ba[ks]-[A-Za-z0-9]{22}\b"),
    ("a token of a package registry", rb"\bpypi-AgE[\w-]{40,}|\bnpm_[A-Za-z0-9]{36}|:_(authToken|password|auth)\s*="),
    ("a signed token", rb"\beyJ[\w-]{10,2000}\.eyJ[\w-]{10,}\.[\w-]{10,}"),
    ("keys of Kubernetes", rb"(?m)^\s*(-\s*)?(client-key-data|client-key|id-token)\s*:\s*\S"),
    ("a login of Docker", rb"\"auths?\"\s*:\s*(\{\s*\"[^\"]+\"\s*:\s*\{\s*\"(auth|identitytoken)\"|\"[\w+/=]{8,})"),
    # A password that is a template ({password}, $PASSWORD, <password>, ***) or the word itself stands for none.
    (
        "an address with a password",
        rb"\b[a-z][a-z0-9+.-]{0,30}://[^\s/:@'\"<>{}$*]*:"
        rb"(?!(?i:pass|passw|password|passwd|pw|pwd|secret|token|xx+)@)[^\s/@'\"<>{}$*\[\]]{3,}@[\w\[.-]",
    ),
)
_SETTING = re.compile(
    rb"(?im)^\s*(export\s+)?[\"']?[\w.-]{0,80}(password|passwd|secret|api[_-]?key|token|private[_-]?key)[\w.-]{0,80}[\"']?"
    rb"\s*[=:]\s*[\"']?(?=[\w+/.=-]*\d)(?=[\w+/.=-]*[A-Za-z])[\w+/.=-]{16,}[\"']?\s*,?\s*$"
)
"""A setting with a long value of letters and digits, in files that are no source code."""
_CODE = frozenset({".py", ".pyi", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".rs", ".go", ".js", ".ts", ".md"})
_PATTERNS = tuple((what, re.compile(pattern)) for what, pattern in _CONTENT)


def named_like_one(path: PurePosixPath) -> bool:
    """Return whether the name of a file, or of a folder on its path, is one that credentials have."""
    *folders, name = (part.lower() for part in path.parts)
    return _fits(name, _FILES) or any(_fits(folder, _FOLDERS) for folder in folders)


def content_like_one(data: bytes, *, suffix: str) -> str | None:
    """Return what credential the content of a file looks like; None for none.

    Args:
        data: The content.
        suffix: Suffix of the file's name, which shows whether it is source code.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data[2:].replace(b"\0", b"")
    data = data.removeprefix(codecs.BOM_UTF8)
    for what, pattern in _PATTERNS:
        if pattern.search(data):
            return what
    if suffix.lower() not in _CODE and _SETTING.search(data):
        return "a setting with a secret"
    return None


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
