// Asks a service with node-redis: client.js PORT PROTOCOL NAME. It prints what client.py prints.
'use strict';

const { createClient } = require('redis');

async function main() {
  const [port, protocol, name] = process.argv.slice(2);
  const options = { socket: { port: Number(port), reconnectStrategy: false }, RESP: Number(protocol), password: 'open' };
  const client = createClient(options);
  client.on('error', () => {}); // The commands fail, too.
  await client.connect();
  const results = [];
  const add = async (call) => {
    try {
      results.push(await call());
    } catch (err) {
      results.push(`error: ${err.message}`);
    }
  };
  const send = (...args) => client.sendCommand(args);
  await add(() => client.ping());
  for (let i = 0; i < 3; i++) {
    await add(() => send('RATELIMIT', 'api', 'user', name));
  }
  await add(() => send('CL.THROTTLE', name, '15', '30', '60'));
  await add(() => send('RATELIMIT.TREE', 'limits', '1', 'user', name, 'trade'));
  const pipeline = Array.from({ length: 4 }, () => send('RATELIMIT', 'api', 'user', `${name} in a pipeline`));
  results.push(...await Promise.all(pipeline));
  await add(() => client.multi().ping().exec());
  await add(async () => {
    const channels = createClient(options);
    channels.on('error', () => {});
    await channels.connect();
    try {
      await channels.subscribe('news', () => {});
      return 'subscribed';
    } finally {
      channels.destroy();
    }
  });
  await add(() => client.get('foo'));
  await add(() => client.echo('still here'));
  console.log(JSON.stringify(results));
  client.destroy();
}

main();
