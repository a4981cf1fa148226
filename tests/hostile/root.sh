# A root of root's own for a user namespace: / of the host belongs to nobody there, and a monitor does not trust what is below.
set -e
mount -t tmpfs -o mode=755 tmpfs /run
cd /run
for all in /*; do
    case $all in /run|/tmp) continue ;; esac
    if [ -L "$all" ]; then cp -P "$all" "/run$all"
    elif [ -d "$all" ]; then mkdir "/run$all" && mount --rbind "$all" "/run$all"
    fi
done
mkdir run tmp old
chmod 1777 tmp
pivot_root . old
cd /
umount -l old
rmdir old
exec "$@"
