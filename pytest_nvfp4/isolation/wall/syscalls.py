"""Numbers of the system calls that a wall refuses (``asm/unistd_64.h`` for x86_64, ``asm-generic/unistd.h``)."""

from __future__ import annotations

from typing import Final

from pytest_nvfp4.isolation.wall.libc import Machine

LAST: Final = 469
"""The last number known here. Later calls are refused as unknown, because nobody has judged them."""

_UNIFIED: Final = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_open": 434,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "process_mrelease": 448,
    "open_tree_attr": 467,
}
"""Calls since Linux 5.1, whose numbers are the same on all architectures."""

NUMBERS: Final[dict[Machine, dict[str, int]]] = {
    "x86_64": {
        **_UNIFIED,
        **{"kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297},
        **{"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312},
        **{"mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "clone": 56},
        **{"swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "acct": 163},
        **{"iopl": 172, "ioperm": 173, "modify_ldt": 154, "uselib": 134, "_sysctl": 156, "syslog": 103, "vhangup": 153},
        **{"create_module": 174, "init_module": 175, "delete_module": 176, "query_module": 178, "finit_module": 313},
        **{"quotactl": 179, "nfsservctl": 180, "kexec_load": 246, "kexec_file_load": 320, "lookup_dcookie": 212},
        **{"settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159},
        **{"add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323},
        **{"name_to_handle_at": 303, "open_by_handle_at": 304, "fanotify_init": 300, "fanotify_mark": 301},
        **{"move_pages": 279, "migrate_pages": 256, "prlimit64": 302, "sched_setaffinity": 203, "sched_setparam": 142},
        **{"sched_setscheduler": 144, "sched_setattr": 314, "setpriority": 141, "ioprio_set": 251},
        **{"socket": 41, "socketpair": 53, "ioctl": 16, "fcntl": 72},
        **{"shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66, "semtimedop": 220},
        **{"msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240},
    },
    "aarch64": {
        **_UNIFIED,
        **{"kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240},
        **{"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272},
        **{"mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "unshare": 97, "setns": 268, "clone": 220},
        **{"swapon": 224, "swapoff": 225, "reboot": 142, "sethostname": 161, "setdomainname": 162, "acct": 89},
        **{"syslog": 116, "vhangup": 58, "init_module": 105, "delete_module": 106, "finit_module": 273},
        **{"quotactl": 60, "nfsservctl": 42, "kexec_load": 104, "kexec_file_load": 294, "lookup_dcookie": 18},
        **{"settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266, "adjtimex": 171},
        **{"add_key": 217, "request_key": 218, "keyctl": 219, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282},
        **{"name_to_handle_at": 264, "open_by_handle_at": 265, "fanotify_init": 262, "fanotify_mark": 263},
        **{"move_pages": 239, "migrate_pages": 238, "prlimit64": 261, "sched_setaffinity": 122, "sched_setparam": 118},
        **{"sched_setscheduler": 119, "sched_setattr": 274, "setpriority": 140, "ioprio_set": 30},
        **{"socket": 198, "socketpair": 199, "ioctl": 29, "fcntl": 25},
        **{"shmget": 194, "shmctl": 195, "shmat": 196, "semget": 190, "semctl": 191, "semtimedop": 192, "semop": 193},
        **{"msgget": 186, "msgctl": 187, "msgrcv": 188, "msgsnd": 189, "mq_open": 180},
    },
}
