// An HTTP server: GET answers with a file below a directory, POST with what was sent.
//
// usage: http_server.js PORT ROOT [WORKERS [none]]. With workers it is a cluster, which replaces them at SIGHUP. Its
// primary accepts and passes connections on; with `none` the workers share the listener and accept themselves.
const cluster = require('cluster');
const fs = require('fs');
const http = require('http');

const [port, root, workers, policy] = process.argv.slice(2);

if (policy === 'none') cluster.schedulingPolicy = cluster.SCHED_NONE;

function serve() {
    http.createServer({ keepAliveTimeout: 60000 }, (request, answer) => {
        answer.setHeader('Content-Type', 'application/octet-stream');
        if (request.method === 'POST') {
            request.pipe(answer);
        } else {
            const file = fs.createReadStream(root + request.url);
            file.on('error', () => { answer.statusCode = 404; answer.end(); });
            file.pipe(answer);
        }
    }).listen(Number(port), '127.0.0.1');
}

function manage() {
    for (let i = 0; i < Number(workers); i++) cluster.fork();
    process.on('SIGHUP', () => {
        const old = Object.values(cluster.workers);
        let left = old.length;
        const listening = () => {
            left -= 1;
            if (left === 0) {
                cluster.off('listening', listening);
                old.forEach((worker) => worker.disconnect());
            }
        };
        cluster.on('listening', listening);
        old.forEach(() => cluster.fork());
    });
    process.on('SIGTERM', () => {
        Object.values(cluster.workers).forEach((worker) => worker.process.kill('SIGTERM'));
        process.exit(0);
    });
}

if (workers && cluster.isPrimary) {
    manage();
} else {
    process.on('SIGTERM', () => process.exit(0));
    process.on('SIGHUP', () => {});
    serve();
}
