#!/bin/busybox sh
# The first program of a guest of `cargo xtask rdma`. The machine's files are its own, and what it writes goes to memory.
# The kernel's command line gives, as variables: lab, a folder with the script to run; target, that of what was built.
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /modules/*.ko; do insmod $module || echo "no $module"; done
mkdir -p /host /rw /new
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /host
mount -t tmpfs rw /rw; mkdir -p /rw/upper /rw/work
mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work overlay /new
for place in dev proc sys; do mount -o move /$place /new/$place; done
for place in tmp run dev/shm; do mkdir -p /new/$place; mount -t tmpfs tmp /new/$place; done
mkdir -p /new/dev/pts; mount -t devpts pts /new/dev/pts
for place in $target $lab; do mkdir -p /new$place; mount -o bind /host$place /new$place; done
ulimit -l unlimited; ulimit -n 65536
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp CARGO_TARGET_DIR=$target
chroot /new /bin/sh $lab/guest.sh
echo "ended $?" > /new/dev/ttyS1
sleep 0.2
poweroff -f
