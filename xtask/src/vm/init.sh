#!/usr/bin/busybox sh
# The first process of a guest: makes the machine, runs the command, tells how it ended, and switches the machine off.
# The console is the kernel's; the command has the second serial line, and its exit code goes to the third.
export PATH=/usr/bin:/usr/sbin:/bin:/sbin HOME=/root TRACER_BIN=/usr/bin/tracer
# An emulated machine is an order of magnitude slower than the deadlines of tests suppose.
export TRACER_LAB_SLOWDOWN=10
/usr/bin/busybox --install -s /bin
ln -s /usr/bin /usr/sbin
ln -s /bin /sbin

mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/pts
mount -t devpts none /dev/pts
mount -t tmpfs none /run
mkdir -p /run/netns
mount -t tmpfs none /tmp
mount -t bpf none /sys/fs/bpf
mount -t cgroup2 none /sys/fs/cgroup
mount -t tracefs none /sys/kernel/tracing
# The kernel loads modules by itself when a device, a rule or a qdisc needs one.
echo /usr/bin/modprobe >/proc/sys/kernel/modprobe
ip link set lo up

stty -F /dev/ttyS1 raw
cd /root
/command </dev/null >/dev/ttyS1 2>&1
echo "$?" >/dev/ttyS2
poweroff -f
