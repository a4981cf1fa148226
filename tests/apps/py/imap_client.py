"""imap_client.py PORT LOGINS: logs in, stores a message, reads it back, and logs out; every third session stays open beside."""
import imaplib
import socket
import sys

port, logins = int(sys.argv[1]), int(sys.argv[2])
socket.setdefaulttimeout(20)
kept = []
for turn in range(logins):
    session = imaplib.IMAP4("127.0.0.1", port)
    session.login(f"user{turn % 3}", "secret")
    session.select("INBOX")
    body = (f"Subject: {turn}\r\n\r\n" + f"line {turn}\r\n" * (200 << turn % 8)).encode()
    assert session.append("INBOX", None, None, body)[0] == "OK"
    number = session.select("INBOX")[1][0].decode()
    back = session.fetch(number, "(RFC822)")[1][0][1]
    assert back.replace(b"\r\n", b"\n") == body.replace(b"\r\n", b"\n"), (turn, len(back), len(body))
    if turn % 3:
        session.logout()
    else:
        kept.append(session)
for session in kept:
    assert session.noop()[0] == "OK"
    session.logout()
print("done", logins)
