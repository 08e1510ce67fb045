// Asks a server with the client that Button publishes: node divvy-client.js PORT.
//
// Its input is a JSON list of steps, each {hit, times}: so many hits at once. When
// all have been answered, or not, comes the next. The output is a JSON list of what
// the client made of them, as [isAllowed, currentCredit, nextResetSeconds], or
// "name: message" of an error. A step {hit, eventually: true} is tried again until
// it is answered, at most for ten seconds: it waits for a new connection.
'use strict';

const Client = require('@button/divvy-client');

async function ask(client, step) {
  try {
    const a = await client.hit(step.hit);
    return [a.isAllowed, a.currentCredit, a.nextResetSeconds];
  } catch (err) {
    return `${err.constructor.name}: ${err.message}`;
  }
}

async function main() {
  const steps = JSON.parse(require('fs').readFileSync(0, 'utf8'));
  const client = new Client('127.0.0.1', Number(process.argv[2]), {
    throttleConnectTimeoutMillis: 20, defaultCommandTimeoutMillis: 10000, maxPendingRequests: 200,
  });
  client.on('error', () => {}); // the hits say so
  client.connect();
  const answers = [];
  for (const step of steps) {
    let got = await Promise.all(Array.from({ length: step.times || 1 }, () => ask(client, step)));
    for (const begun = Date.now(); step.eventually && typeof got[0] === 'string' && Date.now() - begun < 10000;) {
      await new Promise((done) => setTimeout(done, 20));
      got = [await ask(client, step)];
    }
    answers.push(...got);
  }
  client.close();
  console.log(JSON.stringify(answers));
}

main();
