/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_CALLS_H
#define MG_CALLS_H

/* System call numbers of x86-64 programs. */
enum {
    G_READ = 0, G_WRITE = 1, G_CLOSE = 3, G_POLL = 7, G_MMAP = 9, G_MPROTECT = 10, G_MUNMAP = 11, G_BRK = 12,
    G_MREMAP = 25, G_MADVISE = 28, G_SHMAT = 30, G_EXECVE = 59, G_PRCTL = 157, G_ARCH_PRCTL = 158, G_EXECVEAT = 322, G_SIGRETURN = 15, G_READV = 19, G_WRITEV = 20,
    G_PIPE = 22, G_SELECT = 23, G_DUP2 = 33, G_PAUSE = 34, G_NANOSLEEP = 35, G_ALARM = 37,
    G_SETITIMER = 38, G_SENDFILE = 40, G_CONNECT = 42, G_ACCEPT = 43, G_SENDTO = 44,
    G_RECVFROM = 45, G_SENDMSG = 46, G_RECVMSG = 47, G_SHUTDOWN = 48, G_SOCKETPAIR = 53,
    G_CLONE = 56,
    G_FORK = 57, G_VFORK = 58, G_EXIT = 60, G_WAIT4 = 61, G_KILL = 62, G_SEMOP = 65,
    G_MSGSND = 69, G_MSGRCV = 70, G_FCNTL = 72, G_FLOCK = 73, G_SIGTIMEDWAIT = 128,
    G_SIGQUEUEINFO = 129, G_SIGSUSPEND = 130, G_TKILL = 200, G_FUTEX = 202,
    G_TIMER_CREATE = 222, G_TIMER_SETTIME = 223, G_TIMER_DELETE = 226,
    G_SEMTIMEDOP = 220, G_CLOCK_NANOSLEEP = 230, G_EXIT_GROUP = 231, G_EPOLL_WAIT = 232,
    G_TGKILL = 234, G_MQ_SEND = 242, G_MQ_RECEIVE = 243, G_WAITID = 247, G_PSELECT6 = 270,
    G_PPOLL = 271, G_SPLICE = 275, G_TEE = 276, G_VMSPLICE = 278, G_EPOLL_PWAIT = 281,
    G_TIMERFD_SETTIME = 286,
    G_ACCEPT4 = 288, G_DUP3 = 292, G_PIPE2 = 293, G_TGSIGQUEUEINFO = 297, G_RECVMMSG = 299,
    G_SENDMMSG = 307, G_CLOSE_RANGE = 436, G_EPOLL_PWAIT2 = 441,
};

/* ARCH_SET_FS: arch_prctl sets the thread pointer to its second argument. */
enum { G_SET_FS = 0x1002 };
/* Index of clone's argument with the thread pointer of the new thread. */
enum { G_CLONE_THREAD_POINTER = 4 };

/* QEMU's own "to be restarted after a signal". */
enum { G_ERESTARTSYS = 512 };

#endif
