"""An S3 server in memory: `server.py PORT BUCKET…`. Prints its port when it answers; 0 chooses one.

It also answers clients of Google's service, whose XML interface is that of S3 but for names of headers.

Requests are answered one at a time: moto checks the condition of a PUT and stores the object in two
steps, which a server of several threads could interleave.
"""

import sys
import urllib.request
from threading import Thread

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

app = DomainDispatcherApplication(create_backend_app)


def answer(environ, start_response):
    """Answers a request. Generation 0 is Google's condition that there is no such object."""
    if environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None) == "0":
        environ["HTTP_IF_NONE_MATCH"] = "*"
    return app(environ, start_response)


server = make_server("127.0.0.1", int(sys.argv[1]), answer, threaded=False)
Thread(target=server.serve_forever, daemon=True).start()
for bucket in sys.argv[2:]:
    url = f"http://127.0.0.1:{server.port}/{bucket}"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()
print(server.port, flush=True)
# Ends with the test, which holds the other end.
sys.stdin.read()
