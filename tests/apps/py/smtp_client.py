"""smtp_client.py PORT MAILS FOLDER: sends mails of many sizes, some sessions stay open beside; waits until all are in FOLDER, whole."""
import os
import smtplib
import sys
import time

port, mails, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def body(turn):
    return f"line {turn}\n" * (200 << turn % 8)


kept = []
for turn in range(mails):
    session = smtplib.SMTP("127.0.0.1", port, timeout=20)
    session.sendmail("root@localhost", ["root@localhost"], f"Subject: {turn}\n\n{body(turn)}")
    if turn % 5:
        session.quit()
    else:
        kept.append(session)
for session in kept:
    assert session.noop()[0] == 250
    session.quit()
end = time.monotonic() + 30
while time.monotonic() < end and len(os.listdir(folder)) < mails:
    time.sleep(0.05)
seen = set()
for name in os.listdir(folder):
    with open(os.path.join(folder, name)) as file:
        head, text = file.read().split("\n\n", 1)
    turn = int(head.split("Subject: ")[1].split("\n")[0])
    assert text == body(turn), (turn, len(text))
    seen.add(turn)
    os.unlink(os.path.join(folder, name))
assert seen == set(range(mails)), sorted(seen)
print("done", mails)
