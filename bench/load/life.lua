-- Whole lives by three requests: enqueue, fetch, ack. wrk -s life.lua URL
--
-- wrk does not say which connection a request goes out on, so the acks of all connections wait in
-- one line and go first; enqueues and fetches take turns behind them.
local json = {["Content-Type"] = "application/json", ["Host"] = "localhost"}
local enqueue, fetch
local acks, first, last, turn = {}, 1, 0, 0
acked, odd = 0, 0

function init()
  local payload = '{"data":"' .. string.rep("x", 136) .. '"}'
  enqueue = wrk.format("POST", "/api/v1/enqueue", json,
                       '{"queue":"bench","payload":' .. payload .. '}')
  fetch = wrk.format("POST", "/api/v1/fetch", json,
                     '{"queues":["bench"],"worker_id":"w1","timeout":1}')
end

function request()
  if first <= last then
    local ack = acks[first]
    acks[first] = nil
    first = first + 1
    return ack
  end
  turn = turn + 1
  return turn % 2 == 1 and enqueue or fetch
end

function response(status, _, body)
  local id = status == 200 and body:match('"job_id":"([^"]+)"')
  if id then
    local token = body:match('"lease_token":"([^"]+)"')
    last = last + 1
    acks[last] = wrk.format("POST", "/api/v1/ack/" .. id, json,
                            '{"lease_token":"' .. token .. '"}')
  elseif status == 200 then
    acked = acked + 1
  elseif status ~= 201 then
    odd = odd + 1
  end
end

local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function done()
  local lives, others = 0, 0
  for _, thread in ipairs(threads) do
    lives = lives + thread:get("acked")
    others = others + thread:get("odd")
  end
  print(lives .. " lives, " .. others .. " odd answers")
end
