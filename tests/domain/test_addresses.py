"""Which URLs may be called: every spelling of a forbidden place is refused, and no ordinary one."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from duly.domain.addresses import (
    STRICT,
    Destination,
    OutboundRules,
    address_reason,
    meant_by,
    read_url,
    url_reason,
)

LAPTOP = OutboundRules(allow_private=True)
# What somebody would write to get inside.
HOSTILE = [
    "http://example.com/",
    "https://user@example.com/",
    "https://user:password@example.com/",
    "https://example.com@127.0.0.1/",
    "https://example.com\\@127.0.0.1/",
    "https://example.com\\.internal/",
    "https:\\\\127.0.0.1/",
    "https:/127.0.0.1/",
    "https:127.0.0.1",
    "//127.0.0.1/",
    "https://",
    "https:///path",
    "https://:443/",
    "https://example.com:/",
    "https://example.com:22/",
    "https://example.com:0/",
    "https://example.com:99999/",
    "https://example.com:443:443/",
    "https://example.com:443@127.0.0.1/",
    "https://example.com/ path",
    "https://example.com/\tpath",
    "https://example.com/\r\nHost: inside",
    "\nhttps://example.com/",
    "https://example.com/#fragment",
    "https://example.com#@127.0.0.1/",
    "https://exam\u00adple.com/",
    "https://ex\u00e4mple.com/",
    "https://example\u3002com/",
    "https://\u2460\u2461\u2466.0.0.1/",
    "https://\uff11\uff12\uff17.0.0.1/",
    "https://%31%32%37.0.0.1/",
    "https://127%2e0.0.1/",
    "https://localhost/",
    "https://LOCALHOST./",
    "https://foo.localhost/",
    "https://localhost.localdomain/",
    "https://ip6-localhost/",
    "https://127.0.0.1/",
    "https://127.0.0.1./",
    "https://127.1/",
    "https://127.0.1/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0X7F.1/",
    "https://0177.0.0.1/",
    "https://017700000001/",
    "https://127.0.0.01/",
    "https://1.2.3.4.5/",
    "https://256.256.256.256/",
    "https://0/",
    "https://0.0.0.0/",
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://172.31.255.255/",
    "https://192.168.1.1/",
    "https://100.64.0.1/",
    "https://100.127.255.255/",
    "https://169.254.169.254/latest/meta-data/",
    "https://168.63.129.16/machine?comp=goalstate",
    "https://[::ffff:168.63.129.16]/",
    "https://[64:ff9b::168.63.129.16]/",
    "https://100.100.100.200/latest/meta-data/",
    "https://192.0.0.192/latest/",
    "https://[fd00:ec2::254]/latest/meta-data/",
    "https://[fd20:ce::254]/computeMetadata/v1/",
    "https://192.0.2.1/",
    "https://198.18.0.1/",
    "https://198.51.100.7/",
    "https://203.0.113.9/",
    "https://224.0.0.1/",
    "https://240.0.0.1/",
    "https://255.255.255.255/",
    "https://[::]/",
    "https://[::1]/",
    "https://[0:0:0:0:0:0:0:1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[::ffff:169.254.169.254]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::127.0.0.1]/",
    "https://[64:ff9b::a00:1]/",
    "https://[64:ff9b:1::1]/",
    "https://[2002:7f00:1::]/",
    "https://[2002:a00:1::1]/",
    "https://[2001::1]/",
    "https://[2001:db8::1]/",
    "https://[3fff::1]/",
    "https://[fe80::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[fe80::1%eth0]/",
    "https://[fec0::1]/",
    "https://[fc00::1]/",
    "https://[fd12:3456::1]/",
    "https://[ff02::1]/",
    "https://[100::1]/",
    "https://[::1/",
    "https://::1/",
    "https://[127.0.0.1]/",
    "https://[example.com]/",
    "https://a..b/",
    "https://.example.com/",
    "https://-example.com/",
    "https://" + "a" * 64 + ".com/",
    "https://" + "a." * 127 + "com/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://example.com/",
    "javascript:alert(1)",
    "unix:///var/run/docker.sock",
    "",
]
ORDINARY = [
    "https://example.com",
    "https://example.com/",
    "https://example.com?a=b",
    "https://api.example.com:8443/charge?x=1&y=%2F#".rstrip("#"),
    "HTTPS://Example.COM/Path",
    "https://example.com./",
    "https://xn--exmple-cua.com/",
    "https://my_service.example.com/",
    "https://1e100.net/",
    "https://3com.com/",
    "https://a.b.c.d.example/~user/(x);y=1,2/@me?z=[1]",
    "https://1.1.1.1/",
    "https://172.32.0.1/",
    "https://100.128.0.1/",
    "https://[2606:4700:4700::1111]/",
    "https://[::ffff:1.1.1.1]/",
    "https://[64:ff9b::1.1.1.1]/",
]


@pytest.mark.parametrize("url", HOSTILE)
def test_a_hostile_url_is_refused(url: str) -> None:
    """Each of these leads inside, or is read as two different hosts by two readers."""
    assert url_reason(url, STRICT)


@pytest.mark.parametrize("url", ORDINARY)
def test_an_ordinary_url_is_taken(url: str) -> None:
    """A guard that refuses everything would pass every other test here."""
    assert url_reason(url, STRICT) is None


@pytest.mark.parametrize("url", ORDINARY)
def test_the_client_reads_the_same_host_and_port(url: str) -> None:
    """What was checked is worth nothing if something else is called."""
    ours, theirs = read_url(url), URL(url, encoded=True)
    assert isinstance(ours, Destination)
    assert (ours.scheme, ours.port) == (theirs.scheme, theirs.port)
    assert (theirs.raw_host or "").lower() == ours.host


@given(st.text(alphabet="htps:/@\\[]%.#?a1x0-", max_size=30))
def test_whatever_we_take_the_client_reads_alike(text: str) -> None:
    """Two readers that disagree about one URL are how guards are passed."""
    ours = read_url("https://" + text)
    if isinstance(ours, Destination):
        theirs = URL("https://" + text, encoded=True)
        assert ((theirs.raw_host or "").lower(), theirs.port) == (ours.host, ours.port)


def test_on_a_laptop_private_targets_and_plain_http_are_taken() -> None:
    """The first webhook anybody tries goes to a port of their own machine."""
    for url in (
        "http://localhost:3000/hook",
        "http://127.0.0.1:65535/",
        "http://[::1]:8000/",
        "http://192.168.1.7:8080/",
        "http://100.64.0.1/",
        "http://[fd12::1]/",
        "http://example.com/",
    ):
        assert url_reason(url, LAPTOP) is None, url
    for url in (
        "http://169.254.169.254/",
        "http://168.63.129.16/",
        "http://168.63.129.16:32526/vmSettings",
        "http://100.100.100.200/",
        "http://192.0.0.192/",
        "http://[fd00:ec2::254]/",
        "http://[fd00:ec2::23]/",
        "http://[fd20:ce::254]/",
        "http://[fd00:42::42]/",
        "http://0.0.0.0:3000/",
        "http://[::]:3000/",
        "http://[fe80::1]:3000/",
        "http://224.0.0.1:3000/",
        "http://127.0.0.1:22/",
        "http://127.1:3000/",
    ):
        assert url_reason(url, LAPTOP) is not None, url


def test_a_listed_network_is_allowed_and_nothing_beside_it() -> None:
    """An operator opens one network; its neighbours stay shut, and so does http to strangers."""
    rules = OutboundRules(allow_networks=(ip_network("10.1.0.0/16"), ip_network("fd00:1::/32")))
    assert url_reason("http://10.1.2.3:8080/", rules) is None
    assert url_reason("https://[fd00:1::5]/", rules) is None
    assert url_reason("https://[::ffff:10.1.2.3]/", rules) is None
    # A name may lead there; which address it has is asked when it is called.
    assert url_reason("http://billing.internal/", rules) is None
    assert url_reason("https://10.2.0.1/", rules) is not None
    assert url_reason("http://1.1.1.1/", rules) is not None
    assert url_reason("http://10.1.2.3:9999/", rules) is not None
    assert address_reason(ip_address("1.1.1.1"), "https", rules) is None
    assert address_reason(ip_address("1.1.1.1"), "http", rules) is not None


def test_a_reason_never_names_the_address() -> None:
    """Where a name leads inside somebody's network is not for strangers."""
    for text in ("10.0.0.7", "127.0.0.1", "169.254.169.254", "fd00::7", "ff02::1"):
        reason = address_reason(ip_address(text), "https", STRICT)
        assert reason is not None
        assert text not in reason


@given(st.ip_addresses(v=4))
def test_a_wrapped_address_is_judged_by_what_is_inside(address: IPv4Address) -> None:
    """`ipaddress` calls loopback global once it is wrapped for a translator."""
    plain = address_reason(address, "https", STRICT)
    for prefix in ("::ffff:0:0", "64:ff9b::"):
        wrapped = IPv6Address(int(IPv6Address(prefix)) + int(address))
        assert meant_by(wrapped) == address
        assert address_reason(wrapped, "https", STRICT) == plain
    assert address_reason(IPv6Address(int(address)), "https", STRICT)
    six_to_four = IPv6Address((0x2002 << 112) + (int(address) << 80))
    assert address_reason(six_to_four, "https", STRICT)


@given(st.ip_addresses())
def test_nothing_that_is_not_global_is_allowed(address: IPv4Address | IPv6Address) -> None:
    """Our list must not be shorter than the one the language keeps."""
    if address_reason(address, "https", STRICT) is None:
        meant = meant_by(address)
        assert meant.is_global
        assert not meant.is_multicast
        assert not meant.is_reserved or isinstance(meant, IPv6Address)
