# Connections that talk all at once, and check every byte. One line on standard input leads from each stage to the next:
# many talk; the first one's messages become bulk; all but twenty others close.
def stage(name, talks, bulk=None):
    print(name, flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(20):
            together(talks)
        for _ in range(5 if bulk else 0):
            bulk.turn(1 << 18)
    sys.stdin.readline()

talks = [Talk() for _ in range(count)]
bulk, one, two = talks[:3]
one.set([1, 600, 30, 5])
stage("many", talks)
assert one.options() == [1, 600, 30, 5], one.options()
assert two.options() == [0, 7200, 75, 9], two.options()
two.set([1, 500, 20, 4])
assert two.options() == [1, 500, 20, 4], two.options()
stage("bulk", talks[1:], bulk)
for talk in talks[21:]:
    talk.socket.close()
stage("few", talks[1:21])
# By now the kernel's own.
assert one.options() == [1, 600, 30, 5], one.options()
assert two.options() == [1, 500, 20, 4], two.options()
print("over", flush=True)
