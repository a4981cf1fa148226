"""A WSGI application: GET answers with a file below the directory ROOT, POST with what was sent."""
import os

ROOT = os.environ["ROOT"]


def application(environ, start_response):
    if environ["REQUEST_METHOD"] == "POST":
        data = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    else:
        with open(ROOT + environ["PATH_INFO"], "rb") as file:
            data = file.read()
    headers = [("Content-Type", "application/octet-stream"), ("Content-Length", str(len(data)))]
    # uwsgi closes without saying so. gunicorn ignores the header, and says so itself.
    headers.append(("Connection", "close"))
    start_response("200 OK", headers)
    return [data]
