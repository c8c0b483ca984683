"""Certificates for tests of TLS, made when they are needed."""

import ssl
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from duly.api.server import read_tls
from duly.environment import SystemClock

NO_PASSWORD = serialization.NoEncryption()


class Pair:
    """A certificate for 127.0.0.1 that signs itself, and its key, as files."""

    def __init__(
        self,
        folder: Path,
        name: str = "server",
        encryption: serialization.KeySerializationEncryption = NO_PASSWORD,
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "duly test")])
        now = SystemClock().now()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False
            )
            .sign(key, hashes.SHA256())
        )
        self.certificate = folder / f"{name}.pem"
        self.key = folder / f"{name}.key"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
            )
        )

    def context(self) -> ssl.SSLContext:
        context = read_tls(str(self.certificate), str(self.key))
        assert context is not None
        return context
