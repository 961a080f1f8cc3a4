"""An S3 server in memory: `server.py PORT BUCKET…`. Prints its port when it answers; 0 chooses one.

Requests are answered one at a time: moto checks the condition of a PUT and stores the object in two
steps, which a server of several threads could interleave.
"""

import sys
import urllib.request
from threading import Thread

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

app = DomainDispatcherApplication(create_backend_app)
server = make_server("127.0.0.1", int(sys.argv[1]), app, threaded=False)
Thread(target=server.serve_forever, daemon=True).start()
for bucket in sys.argv[2:]:
    url = f"http://127.0.0.1:{server.port}/{bucket}"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()
print(server.port, flush=True)
# Ends with the test, which holds the other end.
sys.stdin.read()
