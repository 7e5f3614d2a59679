--- Where a rank stands in its world, from the environment variables that launchers set.

local fault = require "sluice.cli.fault"

local place = {}

-- Launchers, in the order in which they are believed; a pair counts only whole.
local sources = {
   { "RANK", "WORLD_SIZE" }, -- torchrun, sluice run
   { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" }, -- Open MPI
   { "PMI_RANK", "PMI_SIZE" }, -- MPICH, Intel MPI
   { "SLURM_PROCID", "SLURM_NTASKS" }, -- srun
}

--- How the help of a command tells it.
place.help = "The rank comes from RANK and WORLD_SIZE (torchrun), or OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE (Open MPI), or\n"
   .. "PMI_RANK and PMI_SIZE (MPICH), or SLURM_PROCID and SLURM_NTASKS (srun). Trainers are the first ranks of the world.\n"
   .. "All ranks meet at MASTER_ADDR and MASTER_PORT, where rank 0 listens; --address and --port go over them. Under torchrun,\n"
   .. "whose agent listens at MASTER_PORT itself (TORCHELASTIC_USE_AGENT_STORE=True), ranks meet at MASTER_PORT + 1."

local function whole(name, text, low, high)
   local number = text:match("^%d+$") and tonumber(text)
   if not number or number < low or number > high then
      fault.wrong("environment: %s (%s) must be a whole number from %d to %d", name, text, low, high)
   end
   return number
end

local function rank_of(getenv)
   for _, names in ipairs(sources) do
      local rank, size = getenv(names[1]), getenv(names[2])
      if rank and size then
         return whole(names[1], rank, 0, 2 ^ 31 - 1), whole(names[2], size, 1, 2 ^ 31 - 1), names
      end
   end
   for _, names in ipairs(sources) do
      local set, missing = names[1], names[2]
      if not getenv(set) then
         set, missing = missing, set
      end
      if getenv(set) then
         fault.wrong("environment: %s is set and %s is not: a rank needs both", set, missing)
      end
   end
   fault.wrong("environment: RANK and WORLD_SIZE are not set (nor those of Open MPI, MPICH or Slurm)")
end

local function port_of(args, getenv)
   if args.port then
      return args.port
   end
   local text = getenv("MASTER_PORT")
   if not text then
      fault.wrong("environment: MASTER_PORT is not set and --port not given")
   end
   local port = whole("MASTER_PORT", text, 1, 65535)
   if getenv("TORCHELASTIC_USE_AGENT_STORE") == "True" then
      port = port + 1
   end
   return port
end

--- Where this rank stands.
-- @param args with address and port, where the command line gave them
-- @param size the deployment's world size
-- @param[opt] getenv os.getenv
-- @return { rank =, address =, port = }
function place.find(args, size, getenv)
   getenv = getenv or os.getenv
   local rank, world_size, names = rank_of(getenv)
   if world_size ~= size then
      fault.wrong("environment: %s (%d) must be the deployment's %d ranks", names[2], world_size, size)
   elseif rank >= world_size then
      fault.wrong("environment: %s (%d) must be below %s (%d)", names[1], rank, names[2], world_size)
   end
   local address = args.address or getenv("MASTER_ADDR")
   if not address or address == "" then
      fault.wrong("environment: MASTER_ADDR is not set and --address not given")
   end
   return { rank = rank, address = address, port = port_of(args, getenv) }
end

return place
