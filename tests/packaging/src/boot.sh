# Becomes systemd as the first process of a machine in namespaces: $1 is its root directory, which stays as it is, $2 an empty one.
set -e
below=$1 place=$2
mount --make-rprivate /
mount -t tmpfs tmpfs "$place"
mkdir "$place/upper" "$place/work" "$place/root"
mount -t overlay -o "lowerdir=$below,upperdir=$place/upper,workdir=$place/work" overlay "$place/root"
cd "$place/root"
cp "$3" package.deb
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do
    : > dev/$name
    mount --bind /dev/$name dev/$name
done
ln -s /proc/self/fd dev/fd
mkdir dev/shm dev/pts dev/mqueue
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ip link set lo up
mkdir old
pivot_root . old
cd /
umount -l /old
exec env -i container=sd PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target
