"""Run a program of root's unprivileged: `drop_privileges.py UID GID pass|plain COMMAND...`.

Run by path in an interpreter of its own, because it must change the process that becomes the
command, and imports nothing of ours. `pass` keeps one capability, CAP_DAC_READ_SEARCH, so that the
command gets through folders which only root may enter; `plain` keeps none. No way leads back up.
"""

import ctypes
import os
import sys
from pathlib import Path

CAP_DAC_READ_SEARCH = 2
CAPABILITY_VERSION_3 = 0x20080522
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
# Each with its lock beside it. Without `no_setuid_fixup`, access(2) forgets the capabilities of a
# process whose real user is not root, and initdb does not find the program beside it; `noroot`
# takes from user 0 what the kernel would give back to it.
SECBITS_NOROOT = 0b11 << 0
SECBITS_NO_SETUID_FIXUP = 0b11 << 2
MODES = ("plain", "pass")


class CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class CapabilitySets(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable"))


def checked(answer: int, what: str) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def prctl(libc: ctypes.CDLL, what: str, option: int, *values: int) -> None:
    padded = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)][:4]
    checked(libc.prctl(option, *padded), what)


def become(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def become_with_passage(libc: ctypes.CDLL, uid: int, gid: int) -> None:
    """The change of user keeps every capability under `no_setuid_fixup`: all but one go by hand."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    bits = SECBITS_NOROOT | SECBITS_NO_SETUID_FIXUP
    prctl(libc, "cannot set the securebits", PR_SET_SECUREBITS, bits)
    for capability in range(last + 1):
        if capability != CAP_DAC_READ_SEARCH:
            prctl(libc, "cannot bound the capabilities", PR_CAPBSET_DROP, capability)
    become(uid, gid)
    only = 1 << CAP_DAC_READ_SEARCH
    header = CapabilityHeader(CAPABILITY_VERSION_3, 0)
    # Two sets of 32 capabilities each; none of the second.
    sets = (CapabilitySets * 2)(CapabilitySets(only, only, only), CapabilitySets())
    checked(libc.capset(ctypes.byref(header), sets), "cannot give up capabilities")
    prctl(
        libc, "cannot keep a capability", PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH
    )


def main(arguments: list[str]) -> None:
    uid, gid, mode, *command = arguments
    assert mode in MODES
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if mode == "pass":
            become_with_passage(libc, int(uid), int(gid))
        else:
            become(int(uid), int(gid))
        # A program that is set-uid gives nothing to whatever the command starts.
        prctl(libc, "cannot rule out new privileges", PR_SET_NO_NEW_PRIVS, 1)
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        sys.exit(f"error: cannot run {command[0]} as user {uid}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
