-- What wrk sends: one POST again and again, or one with numbers of its own each time.
-- Arguments: path, body, first number (0: the body as it is; else every `@` in it becomes the next number).

local sent, threads = 0, {}

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  local path, body, first = args[1], args[2], tonumber(args[3])
  wrk.method = "POST"
  wrk.path = path
  wrk.headers["Content-Type"] = "application/json"
  wrk.body = body
  refused = 0
  if first == 0 then
    return  -- wrk sends the same bytes, and counts a status above 399 itself
  end
  request = function()
    sent = sent + 1
    local mine = string.gsub(body, "@", string.format("%d", first + sent))
    return wrk.format(nil, path, nil, mine)
  end
  response = function(status)
    if status ~= 200 then
      refused = refused + 1
    end
  end
end

function done(summary, latency, requests)
  local errors, refused = summary.errors, 0
  for _, thread in ipairs(threads) do
    refused = refused + thread:get("refused")
  end
  io.write(string.format(
    '\nresult {"answers": %d, "seconds": %.6f, "p50_ms": %.3f, "p99_ms": %.3f, "failed": %d}\n',
    summary.requests, summary.duration / 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    math.max(errors.status, refused) + errors.connect + errors.read + errors.write + errors.timeout))
end
