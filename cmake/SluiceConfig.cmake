# find_package(Sluice) gives the target Sluice::sluice: the shared library and where sluice.h lies.
include("${CMAKE_CURRENT_LIST_DIR}/SluiceTargets.cmake")
