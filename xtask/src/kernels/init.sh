#!/bin/busybox sh
# The first process of a machine: sets the system up, does the job in /job.sh and powers off.
#
# Serial ports: the first is the kernel's console. The second takes the report: the programs'
# standard output, and between it lines that begin with "@". The third takes their standard error,
# and the fourth what a job hands over.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
/bin/busybox mkdir -p /proc /sys /dev /run /tmp /root /etc /usr/sbin /usr/bin /sbin /bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
stty -F /dev/ttyS1 raw
stty -F /dev/ttyS2 raw
exec >/dev/ttyS1 2>/dev/ttyS2

while read -r module; do
    insmod "/modules/$module.ko" || echo "insmod $module failed" >&2
done </modules/order
ip link set lo up
# Every program is an ordinary user's with regard to limits.
ulimit -n 65536

seconds() {
    cut -d ' ' -f 1 /proc/uptime
}

echo "@ kernel $(uname -r)"
echo "@ congestion $(cat /proc/sys/net/ipv4/tcp_available_congestion_control)"
echo "@ booted $(seconds)"
. /job.sh
echo "@ done"
sync
poweroff -f
