# Sends back 5,000 messages of a connection's, and leaves the connection to another program, as descriptor 50.
import os, socket, sys

connection = socket.create_server(("127.0.0.1", int(sys.argv[1]))).accept()[0]
for _ in range(5000):
    connection.sendall(connection.recv(100))
os.dup2(connection.fileno(), 50)
os.execv(sys.argv[2], sys.argv[2:])
